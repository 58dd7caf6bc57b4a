//! Data connections: ordinary gRPC on the wire, driven by the thread that calls an operation.
