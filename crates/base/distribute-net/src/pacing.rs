//! Connections over the loopback interface are not paced.

use std::net::IpAddr;
use std::os::fd::AsFd;

/// Takes BBR's pacing from connections over the loopback interface, before they are established:
/// of a socket that is to connect, or one that listens, whose connections have its setting.
/// BBR lets a timer release each write at the bandwidth that it has measured, and measures anything
/// on a connection that rests between operations: some groups took twice the time, from their first
/// operation to their last. Nothing is lost or queued on loopback. Reno does not pace; each kernel
/// has it, and each user may choose it. Connections between hosts keep the system's choice.
pub(crate) fn stop_pacing(socket: impl AsFd, ip: IpAddr) {
    if ip.is_loopback() {
        // A system that refuses stays as it is: slower, not wrong.
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
    }
}
