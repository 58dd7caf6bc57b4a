//! What a rank says when it connects, and what it hears: the texts of the handshake as metadata.

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};

/// The path of the method that carries the Hellos.
pub(super) const HANDSHAKE_PATH: &str = "/distribute.v1.Collectives/Handshake";
/// The path of the method that begins with the last proof.
pub(super) const EXCHANGE_PATH: &str = "/distribute.v1.Collectives/Exchange";

/// The metadata with a text of the handshake.
const TEXT: &str = "distribute-handshake";

const CONTENT_TYPE: &str = "application/grpc";

/// gRPC's number for `FAILED_PRECONDITION`.
pub(super) const FAILED_PRECONDITION: u32 = 9;
/// gRPC's number for `UNIMPLEMENTED`.
pub(super) const UNIMPLEMENTED: u32 = 12;
/// gRPC's number for `UNAUTHENTICATED`.
pub(super) const UNAUTHENTICATED: u32 = 16;

/// Why a request is not answered with data: gRPC's status and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u32,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: u32, message: impl Into<String>) -> Self {
        let message = message.into();
        Refusal { status, message }
    }

    /// The answer of a server.
    pub(super) fn response(&self) -> Response<()> {
        let mut response = answer();
        let headers = response.headers_mut();
        headers.insert("grpc-status", HeaderValue::from(self.status));
        let message = percent_encode(&self.message);
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert("grpc-message", message);
        }
        response
    }

    /// What a server's answer means; `Ok` when it will send data.
    pub(super) fn check(response: &Response<h2::RecvStream>) -> Result<(), Refusal> {
        let headers = response.headers();
        let status = headers.get("grpc-status").and_then(|v| v.to_str().ok());
        if !response.status().is_success() {
            let message = format!("it answers HTTP {}", response.status());
            return Err(Refusal::new(UNIMPLEMENTED, message));
        }
        match status.map(|status| status.parse::<u32>()) {
            None | Some(Ok(0)) if has_grpc_type(headers) => Ok(()),
            None | Some(Ok(0)) => Err(Refusal::new(UNIMPLEMENTED, "it does not speak gRPC")),
            Some(status) => {
                let message = headers.get("grpc-message").and_then(|v| v.to_str().ok());
                let message = percent_decode(message.unwrap_or("no reason given"));
                Err(Refusal::new(status.unwrap_or(UNIMPLEMENTED), message))
            }
        }
    }
}

/// The head of the answer to a request that is accepted.
pub(super) fn answer() -> Response<()> {
    let mut response = Response::new(());
    let content_type = HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert("content-type", content_type);
    response
}

fn has_grpc_type(headers: &HeaderMap) -> bool {
    let content_type = headers.get("content-type").and_then(|v| v.to_str().ok());
    content_type.is_some_and(|value| value.starts_with(CONTENT_TYPE))
}

/// gRPC sends its message percent-encoded; what a header cannot hold is cut to a `?` here.
fn percent_encode(message: &str) -> String {
    let mut encoded = String::new();
    for byte in message.bytes() {
        match byte {
            b'%' => encoded.push_str("%25"),
            b' '..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push('?'),
        }
    }
    encoded
}

fn percent_decode(message: &str) -> String {
    message
        .chars()
        .take(500)
        .collect::<String>()
        .replace("%25", "%")
}

/// A request of a client, with a text of the handshake.
pub(super) fn request(
    path: &str,
    authority: &str,
    tls: bool,
    text: &str,
) -> Result<Request<()>, http::Error> {
    let scheme = if tls { "https" } else { "http" };
    Request::builder()
        .method(Method::POST)
        .uri(format!("{scheme}://{authority}{path}"))
        .version(Version::HTTP_2)
        .header("content-type", CONTENT_TYPE)
        .header("te", "trailers")
        .header(TEXT, HeaderValue::from_bytes(text.as_bytes())?)
        .body(())
}

/// The text in the request of a client.
pub(super) fn read_request<'a, B>(request: &'a Request<B>, path: &str) -> Result<&'a str, Refusal> {
    if request.method() != Method::POST || request.uri().path() != path {
        let message = format!("only POST {path} is served here");
        return Err(Refusal::new(UNIMPLEMENTED, message));
    }
    if !has_grpc_type(request.headers()) {
        let message = format!("the content type is not {CONTENT_TYPE}");
        return Err(Refusal::new(UNIMPLEMENTED, message));
    }
    read_text(request.headers())
}

/// The answer to a client's Hello: all of it, in its metadata.
pub(super) fn answer_with(text: &str) -> Result<Response<()>, http::Error> {
    let mut response = answer();
    let text = HeaderValue::from_bytes(text.as_bytes())?;
    response.headers_mut().insert(TEXT, text);
    response
        .headers_mut()
        .insert("grpc-status", HeaderValue::from(0_u32));
    Ok(response)
}

/// The text of the handshake in metadata.
pub(super) fn read_text(headers: &HeaderMap) -> Result<&str, Refusal> {
    let value = headers.get(TEXT);
    let text = value.and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
    text.ok_or_else(|| {
        let message = format!("the metadata {TEXT} is missing or malformed");
        Refusal::new(FAILED_PRECONDITION, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_survives_the_request_and_the_answer() {
        let text = r#"{"group":"größe"}"#;
        let request = |tls| request(EXCHANGE_PATH, "127.0.0.1:1", tls, text).unwrap();
        assert_eq!(read_request(&request(false), EXCHANGE_PATH), Ok(text));
        let answer = answer_with(text).unwrap();
        assert_eq!(read_text(answer.headers()), Ok(text));
        let mut wrong = request(true);
        wrong.headers_mut().remove(TEXT);
        let refusal = read_request(&wrong, EXCHANGE_PATH).unwrap_err();
        assert!(refusal.message.contains(TEXT), "{refusal:?}");
        let refusal = read_request(&wrong, HANDSHAKE_PATH).unwrap_err();
        assert_eq!(refusal.status, UNIMPLEMENTED);
    }

    #[test]
    fn a_refusal_is_a_trailers_only_answer() {
        let response = Refusal::new(UNAUTHENTICATED, "wrong token: 100% wrong\n").response();
        assert_eq!(response.headers()["grpc-status"], "16");
        assert_eq!(
            response.headers()["grpc-message"],
            "wrong token: 100%25 wrong?"
        );
        assert_eq!(percent_decode("100%25"), "100%");
    }
}
