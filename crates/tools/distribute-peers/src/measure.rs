//! Round trip and rate of one connection, measured by the side that dialled.
//!
//! The round trip is the median of some exchanges of 8 bytes. The rate is that of blocks of bytes
//! to the other side, which answers each with one byte: they grow as long as the next one fits into
//! the time, as what a byte costs is only known after many of them on a fast link, and on a slow
//! link soon (`link_cost` of distribute-collectives grows in the same way). Of the largest blocks
//! the quickest one counts, without the time of a round trip: small ones pass in a burst where a
//! rate is limited on average.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

const PING: u8 = 1;
const BLOCK: u8 = 2;
const PING_BYTES: usize = 8;
const PINGS_MIN: usize = 3;
const PINGS_MAX: usize = 25;
/// The part of the time for exchanges of few bytes.
const PING_PART: u32 = 4;
const BLOCK_BYTES_MIN: u32 = 32 << 10;
const BLOCK_BYTES_MAX: u32 = 64 << 20;
const GROWTH: u32 = 4;
/// Blocks of the largest size that fits.
const REPEATS_MAX: usize = 4;
/// The part of a block's time that counts as the time of its bytes at least, where the round trip
/// is nearly all of it.
const SENDING_MIN: f64 = 0.25;
const BUFFER_BYTES: usize = 128 << 10;
/// How long the listening side waits for the next bytes.
const IDLE: Duration = Duration::from_secs(10);

/// How many times slower than the median of its kind a link is that is named, and how many times
/// longer a round trip.
pub(crate) const FAR: f64 = 3.0;
/// What was measured of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// The median, in seconds.
    pub(crate) round_trip_seconds: f64,
    /// To the side that was dialled.
    pub(crate) bytes_per_second: f64,
}

impl Figures {
    /// The shorter round trip and the higher rate of two.
    pub(crate) fn better(&self, other: &Self) -> Self {
        Self {
            round_trip_seconds: self.round_trip_seconds.min(other.round_trip_seconds),
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
        }
    }
}

/// The upper median.
pub(crate) fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// Answers the dialling side until it closes the connection.
pub(crate) async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let kind = match timeout(IDLE, stream.read_u8()).await? {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            kind => kind?,
        };
        match kind {
            PING => {
                let mut bytes = [0; PING_BYTES];
                timeout(IDLE, stream.read_exact(&mut bytes)).await??;
                stream.write_all(&bytes).await?;
            }
            BLOCK => {
                let mut left = stream.read_u32().await? as usize;
                while left > 0 {
                    let most = left.min(buffer.len());
                    let count = timeout(IDLE, stream.read(&mut buffer[..most])).await??;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    left -= count;
                }
                stream.write_u8(BLOCK).await?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        stream.flush().await?;
    }
}

/// Measures within about `time`; a slow link takes at least a few exchanges and one block, however
/// long these take: the caller has the limit.
pub(crate) async fn measure(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    time: Duration,
) -> io::Result<Figures> {
    let begun = Instant::now();
    let mut trips = Vec::new();
    while trips.len() < PINGS_MIN || (trips.len() < PINGS_MAX && begun.elapsed() < time / PING_PART)
    {
        trips.push(ping(stream, trips.len() as u64).await?);
    }
    trips.sort_unstable();
    let round_trip = trips[trips.len() / 2].as_secs_f64();
    let buffer = noise();
    let (mut bytes, mut best, mut repeats) = (BLOCK_BYTES_MIN, 0.0f64, 0);
    loop {
        let took = block(stream, bytes, &buffer).await?.as_secs_f64();
        let sending = (took - round_trip).max(SENDING_MIN * took).max(1e-9);
        best = best.max(f64::from(bytes) / sending);
        let left = time.saturating_sub(begun.elapsed()).as_secs_f64();
        if repeats == 0 && bytes < BLOCK_BYTES_MAX && took * f64::from(GROWTH) <= left {
            (bytes, best) = (bytes * GROWTH, 0.0);
        } else if repeats < REPEATS_MAX && took <= left {
            repeats += 1;
        } else {
            return Ok(Figures {
                round_trip_seconds: round_trip,
                bytes_per_second: best,
            });
        }
    }
}

async fn ping(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    number: u64,
) -> io::Result<Duration> {
    let mut message = [PING; 1 + PING_BYTES];
    message[1..].copy_from_slice(&number.to_be_bytes());
    let begun = Instant::now();
    stream.write_all(&message).await?;
    stream.flush().await?;
    if stream.read_u64().await? == number {
        Ok(begun.elapsed())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

async fn block(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes: u32,
    buffer: &[u8],
) -> io::Result<Duration> {
    let begun = Instant::now();
    stream.write_u8(BLOCK).await?;
    stream.write_u32(bytes).await?;
    let mut left = bytes as usize;
    while left > 0 {
        let part = buffer.get(..left).unwrap_or(buffer);
        stream.write_all(part).await?;
        left -= part.len();
    }
    stream.flush().await?;
    match stream.read_u8().await? {
        BLOCK => Ok(begun.elapsed()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Bytes that nothing on the way makes fewer.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BUFFER_BYTES / 8).flat_map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn a_connection_has_a_round_trip_and_a_rate() {
        block_on(async {
            let (mut near, mut far) = duplex(64 << 10);
            let measured = async {
                let figures = measure(&mut near, Duration::from_millis(50)).await;
                drop(near);
                figures.unwrap()
            };
            let (figures, answered) = tokio::join!(measured, answer(&mut far));
            answered.unwrap();
            assert!(figures.round_trip_seconds > 0.0 && figures.bytes_per_second > 1e3);
        });
    }

    /// Each 64 KiB take 10 ms at least on this one, in one direction: at most 6.5 MB/s.
    #[test]
    fn the_rate_is_what_the_link_carries() {
        block_on(async {
            let (mut near, slow) = duplex(16 << 10);
            let (slow_out, mut far) = duplex(16 << 10);
            let (mut slow_read, mut slow_write) = tokio::io::split(slow);
            let (mut back_read, mut back_write) = tokio::io::split(slow_out);
            let there = async {
                let mut buffer = vec![0; 64 << 10];
                let mut carried = 0;
                loop {
                    let count = slow_read.read(&mut buffer).await?;
                    if count == 0 {
                        return back_write.shutdown().await;
                    }
                    carried += count;
                    if carried >= 64 << 10 {
                        carried -= 64 << 10;
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    back_write.write_all(&buffer[..count]).await?;
                }
            };
            let back = tokio::io::copy(&mut back_read, &mut slow_write);
            let measured = async {
                let figures = measure(&mut near, Duration::from_millis(300))
                    .await
                    .unwrap();
                near.shutdown().await.unwrap();
                figures
            };
            let all = async { tokio::join!(measured, answer(&mut far)).0 };
            let figures = tokio::select! {
                figures = all => figures,
                _ = async { tokio::join!(there, back) } => unreachable!("ends later"),
            };
            let fastest = f64::from(64 << 10) / 0.01;
            let rate = figures.bytes_per_second;
            assert!(rate < 2.0 * fastest && rate > 1e4, "{rate}");
        });
    }

    #[test]
    fn who_falls_silent_ends_a_measurement_that_has_a_limit() {
        block_on(async {
            let (mut near, _far) = duplex(1024);
            let limit = Duration::from_millis(50);
            let measured = timeout(limit, measure(&mut near, limit)).await;
            assert!(measured.is_err());
        });
    }

    proptest! {
        /// What the other side sends is not believed: nothing but an error or the end comes of it.
        #[test]
        fn any_bytes_are_answered_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            block_on(async {
                let (mut near, mut far) = duplex(64 << 10);
                near.write_all(&bytes).await.unwrap();
                near.shutdown().await.unwrap();
                let _either = answer(&mut far).await;
            });
        }
    }
}
