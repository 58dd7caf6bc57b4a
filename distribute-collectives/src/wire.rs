//! Operation headers and data frames as bytes.
