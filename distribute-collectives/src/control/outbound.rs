//! What is queued for a neighbour, as the body of a stream.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::control::generated::Envelope;
use crate::control::membership::Membership;

/// What is sent on a stream.
pub(super) type Outbound = Pin<Box<dyn Stream<Item = Result<Envelope, Status>> + Send>>;

/// What is queued for a neighbour. Whenever it reads, there may be room for news.
pub(super) fn telling_of_room(
    shared: &Arc<Membership>,
    receiver: mpsc::Receiver<Result<Envelope, Status>>,
) -> Outbound {
    let shared = shared.clone();
    let reading = ReceiverStream::new(receiver).map(move |message| {
        shared.note_room();
        message
    });
    Box::pin(reading)
}
