//! Tests of the shared lock table.
