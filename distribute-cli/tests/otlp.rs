//! `train --otlp-endpoint` (feature `otlp`), with a collector of the test's own.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// Far more than a run of a few steps takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A message that was sent to the collector: its method, and its bytes as they were on the wire.
type Message = (String, Vec<u8>);

/// A server of HTTP/2 that answers every call of gRPC with an empty message.
async fn collector() -> (SocketAddr, UnboundedReceiver<Message>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (messages, received) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, messages.clone()));
        }
    });
    (address, received)
}

async fn serve(stream: TcpStream, messages: UnboundedSender<Message>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    // The client may close the connection in any way.
    while let Some(Ok((request, response))) = connection.accept().await {
        tokio::spawn(answer(request, response, messages.clone()));
    }
}

async fn answer(
    request: Request<h2::RecvStream>,
    mut response: SendResponse<bytes::Bytes>,
    messages: UnboundedSender<Message>,
) {
    let method = request.uri().path().to_string();
    let mut body = request.into_body();
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        let _ = body.flow_control().release_capacity(piece.len());
        all.extend_from_slice(&piece);
    }
    let head = Response::builder().header("content-type", "application/grpc");
    let mut stream = response
        .send_response(head.body(()).unwrap(), false)
        .unwrap();
    // No compression, and a message of no bytes.
    stream
        .send_data(bytes::Bytes::from_static(&[0; 5]), false)
        .unwrap();
    let mut end = HeaderMap::new();
    end.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(end).unwrap();
    let _ = messages.send((method, all));
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_numbers_of_a_run_reach_the_collector() {
    let (address, mut received) = collector().await;
    let folder = tempfile::tempdir().unwrap();
    let run = format!("train --model mlp --replicas 2 --steps 7 --otlp-endpoint http://{address}");
    let finished = tokio::task::spawn_blocking(move || common::run(folder.path(), &run));
    let finished = timeout(LIMIT, finished).await.unwrap().unwrap();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let mut last = None;
    while let Ok(message) = received.try_recv() {
        last = Some(message);
    }
    let (method, message) = last.expect("what is sent when the run ends");
    assert_eq!(
        method,
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    );
    for name in [
        "steps_total",
        "epoch",
        "examples_total",
        "examples_per_second",
        "loss",
        "skipped_steps_total",
        "exchange_seconds_total",
        "waiting_seconds_total",
        "restarts",
    ] {
        let name = format!("distribute_{name}");
        assert!(contains(&message, name.as_bytes()), "{name} is missing");
    }
    assert!(contains(&message, b"service.instance.id"));
    // Seven steps of 64 examples, as protobuf has numbers.
    for value in [7.0_f64, 7.0 * 64.0] {
        assert!(contains(&message, &value.to_le_bytes()), "{value}");
    }
}

#[test]
fn a_collector_that_is_not_there_fails_no_run_and_a_wrong_url_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let quick = "train --model mlp --replicas 2 --steps 3";
    // A free port: its listener is gone.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let run = format!("{quick} --otlp-endpoint http://{address}");
    let finished = common::run(folder.path(), &run);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for wrong in [":::", "127.0.0.1:4317", "https://127.0.0.1:4317"] {
        let finished = common::run(folder.path(), &format!("{quick} --otlp-endpoint {wrong}"));
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        for part in [wrong, "--otlp-endpoint", "http://127.0.0.1:4317"] {
            assert!(finished.stderr.contains(part), "{}", finished.stderr);
        }
    }
}
