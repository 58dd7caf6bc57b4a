//! TAP devices: network interfaces whose frames a program reads and writes.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;

use rustix::ioctl::{Setter, ioctl, opcode};

/// `TUNSETIFF` of `linux/if_tun.h`: makes the device that an open `/dev/net/tun` stands for.
const SET_INTERFACE: rustix::ioctl::Opcode = opcode::write::<c_int>(b'T', 202);
/// Frames as on Ethernet, nothing in front of them, and not a device that is there already.
const FLAGS: i16 = 0x0002 | 0x1000 | (0x8000_u16 as i16);
/// The longest name of an interface, without the zero at its end.
pub const MAX_NAME_BYTES: usize = 15;

/// `struct ifreq` of `linux/if.h`: a name and, for this call, 16 bits of flags.
#[repr(C)]
struct Request {
    name: [u8; MAX_NAME_BYTES + 1],
    flags: i16,
    rest: [u8; 22],
}

/// Makes a TAP device of this name, which is gone when the file is closed.
///
/// Each read gives one frame, and each write sends one; a read waits for one.
///
/// # Errors
/// If the name is not one, is in use, or this process may not make devices.
pub fn make(name: &str) -> io::Result<File> {
    let bytes = name.as_bytes();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if bytes.is_empty() || bytes.len() > MAX_NAME_BYTES || !bytes.iter().all(is_name) {
        let why = format!("`{name}` is no name of at most {MAX_NAME_BYTES} letters and digits");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut request = Request {
        name: [0; MAX_NAME_BYTES + 1],
        flags: FLAGS,
        rest: [0; 22],
    };
    request.name[..bytes.len()].copy_from_slice(bytes);
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: TUNSETIFF reads (and writes back) one `struct ifreq`, whose layout `Request` has: 16
    // bytes of name and 24 of a union, here with the flags at its start. `Setter` passes a pointer
    // to it, which lives as long as the call.
    unsafe { ioctl(&device, Setter::<SET_INTERFACE, Request>::new(request)) }?;
    Ok(device)
}
