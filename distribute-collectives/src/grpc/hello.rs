//! What a rank says when it connects, and what it hears: the texts of the handshake as metadata.

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

/// The path of the method that carries the Hellos.
pub(super) const HANDSHAKE_PATH: &str = "/distribute.v1.Collectives/Handshake";
/// The path of the method that begins with the last proof.
pub(super) const EXCHANGE_PATH: &str = "/distribute.v1.Collectives/Exchange";

/// The metadata with a text of the handshake.
const TEXT: &str = "distribute-handshake";

const CONTENT_TYPE: &str = "application/grpc";

/// Characters of a message that are told and read.
const CHARACTERS_MAX: usize = 500;

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
        let message = encode(&self.message);
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert("grpc-message", message);
        }
        response
    }

    /// What a server's answer means; `Ok` when it will send data.
    pub(super) fn check<B>(response: &Response<B>) -> Result<(), Refusal> {
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
                let message = headers.get("grpc-message").map(HeaderValue::as_bytes);
                let message = decode(message.unwrap_or(b"no reason given"));
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

/// A message as gRPC sends it: `%`, and each byte of its UTF-8 that is not printable ASCII, as
/// `%XX`.
fn encode(message: &str) -> String {
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    // A reader keeps no more, and headers have a limit.
    let message: String = message.chars().take(CHARACTERS_MAX).collect();
    utf8_percent_encode(&message, ENCODED).to_string()
}

/// The beginning of a message that gRPC has sent. It may come from an unauthenticated peer: what is
/// no escape stands for itself. (`tonic::Status::from_header_map` gives up where the message is not
/// UTF-8, and panics where the details next to it are not base64.)
fn decode(message: &[u8]) -> String {
    let decoded = percent_decode(message).decode_utf8_lossy();
    // It ends in a terminal, to which an unauthenticated peer sends no commands.
    let printable = |char: char| if char.is_control() { ' ' } else { char };
    decoded
        .chars()
        .take(CHARACTERS_MAX)
        .map(printable)
        .collect()
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
    let headers = response.headers_mut();
    headers.insert(TEXT, HeaderValue::from_bytes(text.as_bytes())?);
    headers.insert("grpc-status", HeaderValue::from(0_u32));
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
        let message = "wrong token: 100%25 wrong%0A";
        assert_eq!(response.headers()["grpc-message"], message);
    }

    /// What a client reads in an answer with this `grpc-message`.
    fn reason(message: &[u8]) -> String {
        let mut response = Refusal::new(5, "").response();
        let message = HeaderValue::from_bytes(message).unwrap();
        response.headers_mut().insert("grpc-message", message);
        Refusal::check(&response).unwrap_err().message
    }

    #[test]
    fn the_message_of_any_grpc_server_is_read() {
        assert_eq!(reason(b"not%20found"), "not found");
        assert_eq!(reason(b"gr%C3%B6%c3%9fe"), "größe");
        assert_eq!(reason("größe".as_bytes()), "größe");
        assert_eq!(reason(b"100%25"), "100%");
        assert_eq!(reason(&[b'x'; 501]), "x".repeat(500));
        assert_eq!(reason("%C3%B6".repeat(501).as_bytes()), "ö".repeat(500));
    }

    #[test]
    fn what_is_no_escape_stands_for_itself() {
        for broken in ["100%", "%4", "%zz", "%+1", "%%", "%", ""] {
            assert_eq!(reason(broken.as_bytes()), broken);
        }
        assert_eq!(reason(b"%%41"), "%A");
        assert_eq!(reason(b"%C3!"), "\u{fffd}!");
        assert_eq!(reason(b"a%1B[31mb%0A"), "a [31mb ");
    }

    #[test]
    fn a_refusal_in_any_language_survives() {
        let refusal = Refusal::new(FAILED_PRECONDITION, "Größe %20: 100 % – 大");
        let response = refusal.response();
        assert!(response.headers()["grpc-message"].to_str().is_ok());
        assert_eq!(Refusal::check(&response), Err(refusal));
    }

    #[test]
    fn an_answer_without_a_reason_or_with_odd_details_is_a_refusal() {
        let mut response = Refusal::new(5, "why").response();
        let details = HeaderValue::from_static("not base64!");
        let headers = response.headers_mut();
        headers.insert("grpc-status-details-bin", details);
        assert_eq!(Refusal::check(&response), Err(Refusal::new(5, "why")));
        response.headers_mut().remove("grpc-message");
        let expected = Refusal::new(5, "no reason given");
        assert_eq!(Refusal::check(&response), Err(expected));
    }
}
