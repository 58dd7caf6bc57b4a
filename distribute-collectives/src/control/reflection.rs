//! The services that tell any gRPC client which services and messages there are.

use std::io;

use tonic::transport::server::Router;
use tonic_reflection::server::Builder;

use crate::control::client::MESSAGE_MAX_BYTES;

/// The descriptions of all services.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");

/// Adds both versions of the service.
pub(super) fn add_to(server: Router) -> io::Result<Router> {
    let describe = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let current = describe().build_v1().map_err(io::Error::other)?;
    let alpha = describe().build_v1alpha().map_err(io::Error::other)?;
    Ok(server
        .add_service(current.max_decoding_message_size(MESSAGE_MAX_BYTES))
        .add_service(alpha.max_decoding_message_size(MESSAGE_MAX_BYTES)))
}
