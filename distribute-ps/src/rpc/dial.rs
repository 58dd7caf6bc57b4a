//! Dialling: a connection, past the handshake.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distribute_net::peers::{self, DialStage};
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;

use crate::rpc::channel::Channel;
use crate::rpc::clock::{ComputeTimer, within};
use crate::rpc::failure::{ConnectError, ConnectionEnd};
use crate::rpc::handshake;
use crate::rpc::heard::LastHeard;
use crate::rpc::{
    ANSWER_WINDOW, ANSWERS_WINDOW, FRAME_BYTES, HEADER_LIST_BYTES, RpcOptions, SEND_BUFFER,
};

impl Channel {
    /// Connects to `host:port` within the timeout, by the options' clock. Call it inside of a tokio
    /// runtime, which drives the connection from then on.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn connect(
        address: &str,
        options: &RpcOptions,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let stage = Mutex::new(DialStage::Resolving);
        let note = |begun| *stage.lock() = begun;
        match within(&options.clock, timeout, Self::open(address, options, &note)).await {
            Some(opened) => opened,
            None => Err(ConnectError::Unavailable(unanswered(
                address,
                timeout,
                *stage.lock(),
            ))),
        }
    }

    async fn open(
        address: &str,
        options: &RpcOptions,
        note: &(dyn Fn(DialStage) + Send + Sync),
    ) -> Result<Self, ConnectError> {
        let uri = format!("http://{address}/")
            .parse()
            .map_err(|error| ConnectError::Unavailable(format!("bad address: {error}")))?;
        let connected = peers::connect_noting(address, &options.security, note).await;
        let mut connection = connected.map_err(|(reason, is_certificate)| {
            if is_certificate {
                ConnectError::Refused(reason)
            } else {
                ConnectError::Unavailable(reason)
            }
        })?;
        handshake::dial(&mut connection, options).await?;
        let heard = LastHeard::new(options);
        let connection = heard.clone().listening(connection);
        let ended = |error| ConnectError::Unavailable(ConnectionEnd::of(&error).to_string());
        let begun = builder(options).handshake(TokioIo::new(connection));
        let (requests, driver) = begun.await.map_err(ended)?;
        let closed = Arc::new(OnceLock::new());
        let note = closed.clone();
        tokio::spawn(async move {
            let ended = driver.await;
            let _ = note.set(match ended {
                Ok(()) => ConnectionEnd::Gone,
                Err(error) => ConnectionEnd::of(&error),
            });
        });
        Ok(Self {
            requests,
            address: uri,
            closed,
            heard,
        })
    }
}

/// Why an attempt ended that had come to this stage.
fn unanswered(address: &str, timeout: Duration, stage: DialStage) -> String {
    match stage {
        DialStage::Resolving => format!(
            "its name was not resolved within {timeout:.1?} (does this host reach its name server?)"
        ),
        DialStage::Connecting => format!(
            "no answer to the attempt to connect within {timeout:.1?}: a firewall? Let \
             connections from this host to {address} pass"
        ),
        DialStage::Accepted => format!(
            "it accepts connections and does not answer within {timeout:.1?} (stopped, or busy?)"
        ),
    }
}

fn builder(options: &RpcOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(ComputeTimer(options.clock.clone()))
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(ANSWER_WINDOW)
        .initial_connection_window_size(ANSWERS_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST_BYTES);
    builder
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use distribute_net::handshake::Purpose;
    use distribute_net::security::Security;

    use super::*;
    use crate::rpc::driver::Driver;

    /// What is said of a process that lets others connect and says nothing, as a stopped one.
    #[test]
    fn no_firewall_is_asked_for_where_a_connection_was_accepted() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let options = RpcOptions::new(Purpose::Worker, None, Security::default());
        let driver = Driver::start("dial".to_string(), "", options.clock.clone()).unwrap();
        let said = driver
            .run(async move {
                let timeout = Duration::from_millis(300);
                let dialled = Channel::connect(&address, &options, timeout).await;
                Ok(dialled.unwrap_err().to_string())
            })
            .unwrap();
        assert!(
            said.contains("accepts connections and does not answer"),
            "{said}"
        );
        assert!(!said.contains("firewall"), "{said}");
    }

    #[test]
    fn what_was_not_answered_is_named() {
        let said = |stage| unanswered("host:7", Duration::from_secs(2), stage);
        let of_connect = said(DialStage::Connecting);
        assert!(of_connect.contains("a firewall? Let connections from this host to host:7 pass"));
        for stage in [DialStage::Resolving, DialStage::Accepted] {
            assert!(!said(stage).contains("firewall"), "{}", said(stage));
        }
    }
}
