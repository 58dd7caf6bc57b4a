//! gRPC between the processes of a job: one way to listen, one way to dial, for servers and
//! workers alike.
//!
//! Every connection begins with a handshake in which both sides prove that they know the job's
//! token and name their version; no other call is answered before.
