//! The handshake on a connection that carries bytes.
//!
//! Each of its three texts is UTF-8, preceded by its length in bytes (4 bytes, big-endian). The
//! protocol of the two processes follows.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::handshake::{
    Authenticated, Dialer, HandshakeError, Hello, Listener, MESSAGE_BYTES_MAX, Secret, Verified,
};
use crate::peers::Connection;

/// Why a handshake on a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The connection ended.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The two processes do not fit together.
    #[error(transparent)]
    Refused(#[from] HandshakeError),
    /// The other side reports that it does not accept this side's certificate.
    #[error("{0}")]
    Certificate(String),
}

/// The listening side; `own` is its Hello. Admits the peer. Takes at most as long as an
/// unauthenticated connection may stay open.
///
/// # Errors
/// Why the peer was rejected. The peer is told, unless its connection has ended.
pub async fn listen(
    connection: &mut Connection,
    own: Hello,
    secret: &Secret,
) -> Result<Authenticated, ExchangeError> {
    let listener = greet(connection).await?;
    let verified = answer(connection, listener, own, secret).await?;
    let authenticated = verified.check_compatible()?;
    connection.guard().admit_or_end()?;
    Ok(authenticated)
}

/// The first step of [`listen`]: what the peer says it is, which decides what this side answers on
/// a port for several purposes. Nothing is proven.
///
/// # Errors
/// Why it is no Hello. The peer is told, unless its connection has ended.
pub async fn greet(connection: &mut Connection) -> Result<Listener, ExchangeError> {
    let first = receive(connection).await;
    match first.and_then(|first| Ok(Listener::receive(&first)?)) {
        Ok(listener) => {
            connection.guard().note_greeting();
            Ok(listener)
        }
        Err(ExchangeError::Refused(error)) => {
            // The refusal is plain text, so that the other side also sees that this one has no
            // TLS. Unread bytes are read first: closing a connection with unread bytes would lose
            // the refusal.
            let _ = send_text(connection, &error.to_string()).await;
            let _ = tokio::io::copy(connection, &mut tokio::io::sink()).await;
            Err(error.into())
        }
        Err(error) => Err(error),
    }
}

/// The second step of [`listen`]: both sides prove that they know the secret. Whether the peer's
/// claims fit is still to be [checked](Verified::check_compatible), and the peer to be
/// [admitted](crate::peers::ConnectionGuard::admit_or_end).
///
/// # Errors
/// Why the peer has proven nothing.
pub async fn answer(
    connection: &mut Connection,
    listener: Listener,
    own: Hello,
    secret: &Secret,
) -> Result<Verified, ExchangeError> {
    let guard = connection.guard();
    let (awaiting, answer) = listener.answer(own, secret, &guard.channel().binding)?;
    send_text(connection, &answer).await?;
    let proof = receive(connection).await?;
    Ok(awaiting.finish(&proof)?)
}

/// The dialling side; `own` is its Hello.
///
/// # Errors
/// Why the listener was rejected; it is told.
pub async fn dial(
    connection: &mut Connection,
    own: Hello,
    secret: &Secret,
) -> Result<Authenticated, ExchangeError> {
    let guard = connection.guard();
    let exchanged = exchange_as_dialer(connection, own, secret).await;
    exchanged.map_err(|error| match guard.certificate_refusal() {
        // This arrives after the TLS handshake of this side is over.
        Some(why) => ExchangeError::Certificate(why),
        None => error,
    })
}

async fn exchange_as_dialer(
    connection: &mut Connection,
    own: Hello,
    secret: &Secret,
) -> Result<Authenticated, ExchangeError> {
    let (dialer, first) = Dialer::start(own, secret)?;
    send_text(connection, &first).await?;
    let answer = receive(connection).await?;
    let finished = dialer.finish(&answer, &connection.guard().channel().binding);
    // A rejected listener is told by an invalid proof.
    let proof = finished.as_ref().map_or("", |(proof, _)| proof);
    let sent = send_text(connection, proof).await;
    let (_, proven) = finished?;
    sent?;
    Ok(proven.check_compatible()?)
}

/// A text of the handshake.
async fn receive(connection: &mut Connection) -> Result<String, ExchangeError> {
    let text = receive_text(connection, MESSAGE_BYTES_MAX).await;
    text.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => HandshakeError::malformed(error).into(),
        _ => error.into(),
    })
}

/// Sends a text, preceded by its length.
///
/// # Errors
/// The errors of the stream.
pub async fn send_text(stream: &mut (impl AsyncWrite + Unpin), text: &str) -> io::Result<()> {
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let message = [&length.to_be_bytes(), text.as_bytes()].concat();
    stream.write_all(&message).await?;
    stream.flush().await
}

/// Receives a text of at most `bytes_max` bytes. Memory grows with the bytes that have arrived,
/// not with the announced length.
///
/// # Errors
/// [`InvalidData`](io::ErrorKind::InvalidData) for a text that is longer or not UTF-8,
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) for a text that ends early, and the stream's
/// errors.
pub async fn receive_text(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
) -> io::Result<String> {
    let length = stream.read_u32().await?;
    if usize::try_from(length).is_ok_and(|length| length > bytes_max) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
    }
    let mut text = String::new();
    let count = stream.take(length.into()).read_to_string(&mut text).await?;
    if u32::try_from(count) == Ok(length) {
        Ok(text)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio_stream::StreamExt;

    use super::*;
    use crate::handshake::Purpose;
    use crate::peers::{accept, connect};
    use crate::security::Security;

    const SECRET: &str = "0123456789abcdef";

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(test)
    }

    fn hello(task: u32) -> Hello {
        let mut hello = Hello::new(Purpose::Worker, 1, "0.1.0");
        hello.identity.task = task;
        hello
    }

    /// The two ends of a connection, the one that dialled first.
    async fn pair() -> [Connection; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut accepted = accept(listener, None, |_, _| {}).unwrap();
        let security = Security::default();
        let (dialled, accepted) = tokio::join!(connect(&address, &security), accepted.next());
        [dialled.unwrap(), accepted.unwrap().unwrap()]
    }

    #[test]
    fn both_sides_know_each_other_and_what_follows_is_theirs() {
        block_on(async {
            let [mut near, mut far] = pair().await;
            let secret = Secret::new(SECRET);
            let (dialled, listened) = tokio::join!(
                dial(&mut near, hello(7), &secret),
                listen(&mut far, hello(0), &secret)
            );
            let (dialled, listened) = (dialled.unwrap(), listened.unwrap());
            assert_eq!(dialled.peer.identity.task, 0);
            assert_eq!(listened.peer.identity.task, 7);
            assert!(dialled.session_key == listened.session_key);
            assert!(far.guard().is_admitted());
            send_text(&mut near, "what follows").await.unwrap();
            assert_eq!(receive_text(&mut far, 64).await.unwrap(), "what follows");
        });
    }

    #[test]
    fn both_sides_hear_of_another_secret_or_purpose_and_no_peer_is_admitted() {
        let mut other = hello(7);
        other.purpose = Purpose::Launcher;
        for (own, secret) in [(hello(7), "another one of the job"), (other, SECRET)] {
            block_on(async {
                let [mut near, mut far] = pair().await;
                let (theirs, ours) = (Secret::new(secret), Secret::new(SECRET));
                let (dialled, listened) = tokio::join!(
                    dial(&mut near, own, &theirs),
                    listen(&mut far, hello(0), &ours)
                );
                for side in [dialled.map(drop), listened.map(drop)] {
                    let error = side.unwrap_err();
                    assert!(matches!(error, ExchangeError::Refused(_)), "{error}");
                }
                assert!(!far.guard().is_admitted());
            });
        }
    }

    /// Even a peer with another version of the handshake, to which nothing can be proven, is told.
    #[test]
    fn who_makes_no_handshake_is_told_so_in_words() {
        let of_other_version = r#"{"handshake":9}"#;
        let too_long = "x".repeat(MESSAGE_BYTES_MAX + 1);
        for (text, word) in [
            ("{}", "no handshake"),
            (of_other_version, "version 9"),
            (&too_long, "too long"),
        ] {
            block_on(async {
                let [mut near, mut far] = pair().await;
                let asked = async {
                    send_text(&mut near, text).await.unwrap();
                    let answer = receive_text(&mut near, MESSAGE_BYTES_MAX).await.unwrap();
                    drop(near);
                    answer
                };
                let secret = Secret::new(SECRET);
                let (answer, listened) = tokio::join!(asked, listen(&mut far, hello(0), &secret));
                assert!(answer.contains(word), "{answer}");
                assert_eq!(listened.unwrap_err().to_string(), answer);
            });
        }
    }

    #[test]
    fn a_text_that_is_cut_short_is_no_text() {
        block_on(async {
            for (bytes, kind) in [
                (&b"\0\0\0\x05ab"[..], io::ErrorKind::UnexpectedEof),
                (b"\0\0", io::ErrorKind::UnexpectedEof),
                (b"\0\0\0\x02\xff\xff", io::ErrorKind::InvalidData),
                (b"\xff\xff\xff\xff", io::ErrorKind::InvalidData),
            ] {
                let received = receive_text(&mut &*bytes, 64).await;
                assert_eq!(received.unwrap_err().kind(), kind);
            }
        });
    }
}
