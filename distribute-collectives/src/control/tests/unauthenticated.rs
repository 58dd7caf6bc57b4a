//! Another program that has the address of a rank for a while.

use http::{HeaderMap, HeaderValue, Response};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::services::client;
use super::*;

/// Answers the next call with an error whose details are not base64, in the head of the answer or
/// behind its body.
async fn fail_call(listener: &TcpListener, in_head: bool) {
    let (socket, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(socket).await.unwrap();
    let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
    let mut status = HeaderMap::new();
    status.insert("grpc-status", HeaderValue::from_static("2"));
    status.insert("grpc-status-details-bin", HeaderValue::from_static("!!!"));
    let mut answer = Response::new(());
    if in_head {
        *answer.headers_mut() = status;
        respond.send_response(answer, true).unwrap();
    } else {
        let mut body = respond.send_response(answer, false).unwrap();
        body.send_trailers(status).unwrap();
    }
    // Sends what is queued. The client closes the connection when it has read that.
    let closed = async { while let Some(Ok(_)) = connection.accept().await {} };
    let _ = timeout(Duration::from_secs(2), closed).await;
}

/// tonic panics over such details: the task that dials rank 0 would be gone.
#[test]
fn an_answer_with_malformed_details_keeps_no_rank_out() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(2);
        let (second, first) = (sockets.remove(1), sockets.remove(0));
        let one = options(1, &addresses);
        let one = std::thread::spawn(move || join(one, second));
        client(async {
            let unauthenticated = first.into_socket();
            unauthenticated.set_nonblocking(true).unwrap();
            let unauthenticated = TcpListener::from_std(unauthenticated).unwrap();
            for in_head in [true, false] {
                let failed =
                    timeout(Duration::from_secs(8), fail_call(&unauthenticated, in_head)).await;
                assert!(failed.is_ok(), "rank 0 is not dialled any more");
            }
        });
        let first = BoundListener::bind(0, &addresses[0], &Security::default()).unwrap();
        let zero = join(options(0, &addresses), first).unwrap();
        let one = one.join().unwrap().unwrap();
        gather_once(&[&zero, &one]);
    });
}
