//! Around the softcore: see the parts.

pub(crate) mod golden;
pub(crate) mod machine;
pub(crate) mod stepper;
pub(crate) mod world;
