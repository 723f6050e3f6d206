//! Procedures built by hand, as the verifier would hand them over, and what access sets say of them.

mod build;
mod covers;
mod model;
mod random;
mod separable;
mod shapes;
