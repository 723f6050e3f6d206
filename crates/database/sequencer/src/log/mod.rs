//! The log: segments of frames.
//!
//! | module | idea |
//! |---|---|
//! | `space` | segments are made, and room in them reserved, before anything happens |
//! | `room` | where records go: segments, or a journal |
//! | `writer` | one thread writes and syncs, and then tells those who wait |
//! | `reader` | walks all segments, and tells a torn tail from damage |

pub(crate) mod reader;
pub(crate) mod room;
pub(crate) mod space;
pub(crate) mod writer;
