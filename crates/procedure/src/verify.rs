//! (the verifier)
