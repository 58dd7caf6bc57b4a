//! Parts of a server without a network.
