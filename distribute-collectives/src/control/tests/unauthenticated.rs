//! Another program that has the address of a rank for a while.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::services::run;
use super::*;

/// What it may answer to a Hello.
const ANSWERS: [&[u8]; 6] = [
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    // The settings of a server of HTTP/2, which is a text of 0 bytes.
    b"\0\0\0\0\x04\0\0\0\0\0",
    b"\0\0\0\x05nonse",
    b"\0\0\0\x04\xff\xff\xff\xff",
    &[0xff; 64],
];

#[test]
fn an_answer_of_another_program_keeps_no_rank_out() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(2);
        let (second, first) = (sockets.remove(1), sockets.remove(0));
        let one = options(1, &addresses);
        let one = std::thread::spawn(move || join(one, second));
        run(async {
            let unauthenticated = first.into_socket();
            unauthenticated.set_nonblocking(true).unwrap();
            let unauthenticated = TcpListener::from_std(unauthenticated).unwrap();
            for answer in ANSWERS {
                let accepted = timeout(Duration::from_secs(8), unauthenticated.accept()).await;
                let (mut socket, _) = accepted.expect("rank 0 is not dialled any more").unwrap();
                socket.write_all(answer).await.unwrap();
                socket.shutdown().await.unwrap();
                let mut rest = Vec::new();
                let read = socket.read_to_end(&mut rest);
                let _ = timeout(Duration::from_secs(8), read)
                    .await
                    .expect("it stays");
            }
        });
        let first = BoundListener::bind(0, &addresses[0], &Security::default()).unwrap();
        let zero = join(options(0, &addresses), first).unwrap();
        let one = one.join().unwrap().unwrap();
        gather_once(&[&zero, &one]);
    });
}
