//! An HTTP server with one page, on its own thread.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use distribute_core::{Error, Result};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

/// Maximum number of connections at a time; others wait.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// Pause after the system has refused to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Memory limit of a request: the minimum that hyper permits.
const REQUEST_BYTES: usize = 8192;

/// The content type of the format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// A server until it is dropped.
pub(super) struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and answers every `GET /metrics` with the result of `page`.
    ///
    /// # Errors
    /// If the address is not available, or no thread can be started.
    pub(super) fn start(
        address: SocketAddr,
        page: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self> {
        let cannot = |error: io::Error| {
            let what = format!(
                "cannot listen on --metrics-addr {address} ({error}); give a free port of an \
                 address of this host, or port 0 for any"
            );
            Error::of_system(&error, what)
        };
        let listener = StdListener::bind(address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(cannot)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let page: Page = Arc::new(page);
        let thread = thread::Builder::new()
            .name("metrics".to_string())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        // Ended, or the handle was dropped.
                        _ = stopped => {}
                        () = accept(listener, page) => {}
                    }
                });
            })
            .map_err(cannot)?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address on which it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there affects only one page.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

/// Accepts connections while it is polled.
async fn accept(listener: StdListener, page: Page) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = Arc::clone(&page);
                tokio::spawn(async move {
                    // Errors of a slow or wrong client affect only this client.
                    let _ended = timeout(CONNECTION_LIMIT, serve(stream, page)).await;
                    drop(place);
                });
            }
            // An error of one connection, or no free file descriptors.
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve(stream: TcpStream, page: Page) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(&request, &page);
        async { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_LIMIT)
        .max_buf_size(REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn answer(request: &Request<Incoming>, page: &Page) -> Response<String> {
    let (status, name, value, text) = match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => {
            (StatusCode::OK, CONTENT_TYPE, FORMAT, page())
        }
        ("/metrics", _) => {
            let text = "only GET is answered here\n".to_string();
            (StatusCode::METHOD_NOT_ALLOWED, ALLOW, "GET, HEAD", text)
        }
        _ => {
            let text = "the metrics are at /metrics\n".to_string();
            (StatusCode::NOT_FOUND, CONTENT_TYPE, "text/plain", text)
        }
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static(value);
    response.headers_mut().insert(name, value);
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    use super::*;

    fn server() -> Server {
        let address = "127.0.0.1:0".parse().unwrap();
        Server::start(address, || "a 1\n".to_string()).unwrap()
    }

    /// The server's answer to these bytes, until it closes the connection.
    fn ask(server: &Server, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(CONNECTION_LIMIT * 4)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        // The connection may be reset while unread bytes are left.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

    #[test]
    fn a_request_gets_the_page_and_any_other_a_reason() {
        let server = server();
        let page = ask(&server, GET);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(
            page.contains(FORMAT) && page.ends_with("\r\n\r\na 1\n"),
            "{page}"
        );
        let other = ask(&server, b"GET / HTTP/1.0\r\n\r\n");
        assert!(other.starts_with("HTTP/1.0 404"), "{other}");
        let posted = ask(&server, b"POST /metrics HTTP/1.0\r\n\r\n");
        assert!(posted.starts_with("HTTP/1.0 405"), "{posted}");
        for nonsense in [&b"\x00\xff\r\n\r\n"[..], b"GET\r\n\r\n", &[b'a'; 20_000]] {
            let answer = ask(&server, nonsense);
            assert!(!answer.contains("200 OK"), "{answer}");
        }
        assert!(ask(&server, GET).contains("200 OK"));
    }

    #[test]
    fn slow_clients_neither_stop_it_nor_stay() {
        let server = server();
        let slow: Vec<TcpStream> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = TcpStream::connect(server.address()).unwrap();
                stream.write_all(b"GET /met").unwrap();
                stream
            })
            .collect();
        assert!(ask(&server, GET).contains("200 OK"));
        drop(slow);
    }

    #[test]
    fn it_ends_with_its_handle_while_peers_are_connected() {
        let server = server();
        let address = server.address();
        let _slow = TcpStream::connect(address).unwrap();
        let begin = Instant::now();
        drop(server);
        assert!(begin.elapsed() < CONNECTION_LIMIT);
        assert!(StdListener::bind(address).is_ok());
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let server = server();
        let again = Server::start(server.address(), String::new);
        let said = again.unwrap_err().to_string();
        assert!(said.contains(&server.address().to_string()), "{said}");
    }
}
