//! From a connection between two ranks that have proven themselves to a lane: HTTP/2 with one
//! stream, opened by futures that wait for nothing but their socket.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

use http::{HeaderValue, Method, Request, Response, Version};

use crate::grpc::entrance::Arrival;
use crate::grpc::lane::{
    CONNECTION_WINDOW_BYTES, Driver, FRAME_BYTES, HEADER_LIST_BYTES, Lane, STREAM_WINDOW_BYTES,
};
use crate::grpc::pool::Segment;

/// The method of `collectives.proto`; whoever has come so far has proven where it belongs.
const EXCHANGE: &str = "http://lane/distribute.v1.Collectives/Exchange";

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Makes a lane of a connection; or says why it is none.
///
/// `outstanding` counts the bytes of segments to the rank.
pub(super) async fn open(
    arrival: Arrival,
    max_message_bytes: usize,
    outstanding: Arc<AtomicUsize>,
) -> Result<Lane, String> {
    let opened = if arrival.is_client {
        call(arrival, max_message_bytes, outstanding).await
    } else {
        answer(arrival, max_message_bytes, outstanding).await
    };
    opened.map_err(|error| format!("HTTP/2: {error}"))
}

async fn call(
    arrival: Arrival,
    max_message_bytes: usize,
    outstanding: Arc<AtomicUsize>,
) -> Result<Lane, h2::Error> {
    let (mut requests, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .enable_push(false)
        .handshake::<_, Segment>(arrival.stream)
        .await?;
    let mut driver = Driver::Client(connection);
    poll_fn(|context| match requests.poll_ready(context) {
        Poll::Pending => driver_ended(&mut driver, context),
        ready => ready,
    })
    .await?;
    let mut request = Request::new(());
    (*request.method_mut(), *request.version_mut()) = (Method::POST, Version::HTTP_2);
    *request.uri_mut() = http::Uri::from_static(EXCHANGE);
    let headers = request.headers_mut();
    headers.insert("content-type", CONTENT_TYPE);
    headers.insert("te", HeaderValue::from_static("trailers"));
    let (mut response, send) = requests.send_request(request, false)?;
    let response = poll_fn(|context| {
        let ended = driver_ended(&mut driver, context);
        match Pin::new(&mut response).poll(context) {
            Poll::Pending => ended,
            ready => ready,
        }
    })
    .await?;
    Ok(Lane::new(
        arrival.socket,
        driver,
        (send, response.into_body()),
        max_message_bytes,
        outstanding,
    ))
}

/// Moves the connection on; ready when it has ended.
fn driver_ended<T>(driver: &mut Driver, context: &mut Context<'_>) -> Poll<Result<T, h2::Error>> {
    let ended = |ended: Result<(), h2::Error>| {
        ended?;
        Err(h2::Reason::NO_ERROR.into())
    };
    driver.poll(context).map(ended)
}

async fn answer(
    arrival: Arrival,
    max_message_bytes: usize,
    outstanding: Arc<AtomicUsize>,
) -> Result<Lane, h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_concurrent_streams(1)
        .handshake::<_, Segment>(arrival.stream.of_server())
        .await?;
    let closed = || h2::Error::from(h2::Reason::NO_ERROR);
    let (request, mut respond) = connection.accept().await.ok_or_else(closed)??;
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", CONTENT_TYPE);
    let send = respond.send_response(response, false)?;
    let mut lane = Lane::new(
        arrival.socket,
        Driver::Server(connection),
        (send, request.into_body()),
        max_message_bytes,
        outstanding,
    );
    lane.drive(0);
    Ok(lane)
}
