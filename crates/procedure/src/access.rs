//! (access sets: which rows a call will touch, from its arguments alone)
