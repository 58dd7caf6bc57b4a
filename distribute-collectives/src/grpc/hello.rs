//! What a rank says when it connects, and what it hears.

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};

/// The path of the method.
pub(super) const PATH: &str = "/distribute.v1.Collectives/Exchange";

const CONTENT_TYPE: &str = "application/grpc";

/// gRPC's number for `FAILED_PRECONDITION`.
pub(super) const FAILED_PRECONDITION: u32 = 9;
/// gRPC's number for `UNIMPLEMENTED`.
pub(super) const UNIMPLEMENTED: u32 = 12;
/// gRPC's number for `UNAUTHENTICATED`.
pub(super) const UNAUTHENTICATED: u32 = 16;

/// What a connecting rank says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) group: String,
    pub(crate) generation: u64,
    pub(crate) world_size: usize,
    pub(crate) rank: usize,
    pub(crate) lane: usize,
    /// Number of lanes of each pair of ranks.
    pub(crate) lanes: usize,
    /// Shows that it may join; only whoever checks it knows how.
    pub(crate) proof: String,
}

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
            None if has_grpc_type(headers) => Ok(()),
            None => Err(Refusal::new(UNIMPLEMENTED, "it does not speak gRPC")),
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

impl Hello {
    /// The request of a client.
    pub(super) fn request(&self, authority: &str, tls: bool) -> Result<Request<()>, http::Error> {
        let scheme = if tls { "https" } else { "http" };
        Request::builder()
            .method(Method::POST)
            .uri(format!("{scheme}://{authority}{PATH}"))
            .version(Version::HTTP_2)
            .header("content-type", CONTENT_TYPE)
            .header("te", "trailers")
            .header(
                "distribute-group",
                HeaderValue::from_bytes(self.group.as_bytes())?,
            )
            .header("distribute-generation", self.generation)
            .header("distribute-world-size", self.world_size)
            .header("distribute-rank", self.rank)
            .header("distribute-lane", self.lane)
            .header("distribute-lanes", self.lanes)
            .header("distribute-proof", HeaderValue::from_str(&self.proof)?)
            .body(())
    }

    /// Reads the request of a client.
    pub(super) fn parse<B>(request: &Request<B>) -> Result<Hello, Refusal> {
        if request.method() != Method::POST || request.uri().path() != PATH {
            let message = format!("only POST {PATH} is served here");
            return Err(Refusal::new(UNIMPLEMENTED, message));
        }
        if !has_grpc_type(request.headers()) {
            let message = format!("the content type is not {CONTENT_TYPE}");
            return Err(Refusal::new(UNIMPLEMENTED, message));
        }
        let text = |name: &str| {
            let value = request.headers().get(name);
            let text = value.and_then(|v| std::str::from_utf8(v.as_bytes()).ok());
            text.ok_or_else(|| missing(name))
        };
        let number = |name: &str| text(name)?.parse::<u64>().map_err(|_| missing(name));
        let size = |name: &str| usize::try_from(number(name)?).map_err(|_| missing(name));
        Ok(Hello {
            group: text("distribute-group")?.to_string(),
            generation: number("distribute-generation")?,
            world_size: size("distribute-world-size")?,
            rank: size("distribute-rank")?,
            lane: size("distribute-lane")?,
            lanes: size("distribute-lanes")?,
            proof: text("distribute-proof")?.to_string(),
        })
    }
}

fn missing(name: &str) -> Refusal {
    let message = format!("the metadata {name} is missing or malformed");
    Refusal::new(FAILED_PRECONDITION, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_request() {
        let hello = Hello {
            group: "größe".to_string(),
            generation: u64::MAX,
            world_size: 5,
            rank: 4,
            lane: 1,
            lanes: 2,
            proof: "0123abcd".to_string(),
        };
        let request = hello.request("127.0.0.1:1", false).unwrap();
        assert_eq!(Hello::parse(&request), Ok(hello.clone()));
        let mut wrong = hello.request("127.0.0.1:1", true).unwrap();
        wrong.headers_mut().remove("distribute-rank");
        assert_eq!(Hello::parse(&wrong), Err(missing("distribute-rank")));
        *wrong.uri_mut() = http::Uri::from_static("/other");
        assert_eq!(Hello::parse(&wrong).unwrap_err().status, UNIMPLEMENTED);
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
