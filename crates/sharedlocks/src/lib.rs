//! The shared lock table of `lockwork-locking` in memory that processes share.
