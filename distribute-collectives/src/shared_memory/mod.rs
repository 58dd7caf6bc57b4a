//! Ranks of one host: buffers and meetings in a shared segment.
