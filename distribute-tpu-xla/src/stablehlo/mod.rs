//! A typed builder of StableHLO programs that checks shapes while building and prints text.
