//! Answers without the details of a status: tonic panics when they are not base64, and the side
//! that answers has proven nothing yet.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::{Channel, Error};

/// They are not read here, and no rank sends any.
const DETAILS: &str = "grpc-status-details-bin";

/// A channel, or the body of an answer, that shows tonic no details.
pub(super) struct WithoutDetails<T>(pub(super) T);

impl Service<Request<Body>> for WithoutDetails<Channel> {
    type Response = Response<WithoutDetails<Body>>;
    type Error = Error;
    type Future = BoxFuture<Self::Response, Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answering = self.0.call(request);
        Box::pin(async move {
            let mut answer = answering.await?;
            answer.headers_mut().remove(DETAILS);
            Ok(answer.map(WithoutDetails))
        })
    }
}

impl HttpBody for WithoutDetails<Body> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.0).poll_frame(context);
        polled.map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                trailers.remove(DETAILS);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
