//! Two processors, one lock.
