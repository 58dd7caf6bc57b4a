//! What happens to a frame on its way from one port to another, and how that is written.

use std::time::Duration;

/// One direction between two ports. As it starts, everything passes at once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Link {
    /// From the end of sending to the arrival.
    pub delay: Duration,
    /// The part of the frames that is lost, from 0 to 1.
    pub loss: f64,
    /// How many bits are sent in a second; `None` for any number.
    pub bits_per_second: Option<u64>,
    /// How long a frame may wait to be sent; those that would wait longer are dropped.
    pub queue: Option<Duration>,
    /// Whether nothing passes, without a word to either side.
    pub is_cut: bool,
}

/// A queue of a usual router, where none is given.
pub const QUEUE: Duration = Duration::from_millis(50);

/// What a command says.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Everything about the links from these ports to those; `None` for all ports.
    Set(Option<String>, Option<String>, Link),
    /// What has passed so far.
    Counters,
}

/// Reads a line: `FROM TO [delay=20ms] [loss=1%] [rate=10mbit] [queue=50ms] [cut]`, or `counters`.
///
/// # Errors
/// What is wrong with it.
pub fn parse(line: &str) -> Result<Command, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words[..] == ["counters"] {
        return Ok(Command::Counters);
    }
    let [from, to, settings @ ..] = &words[..] else {
        return Err(
            "write `FROM TO [delay=20ms] [loss=1%] [rate=10mbit] [queue=50ms] [cut]`, \
                    with * for all, or `counters`"
                .to_string(),
        );
    };
    let mut link = Link::default();
    for setting in settings {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        match (name, value) {
            ("cut", "") => link.is_cut = true,
            ("delay", value) => link.delay = time(value)?,
            ("queue", value) => link.queue = Some(time(value)?),
            ("loss", value) => {
                let percent = number(value, "%", "1%")?;
                let loss = percent / 100.0;
                if loss > 1.0 {
                    return Err(format!("{setting}: at most 100% can be lost"));
                }
                link.loss = loss;
            }
            ("rate", value) => {
                let bits = number(value, "mbit", "10mbit")? * 1e6;
                if bits < 1.0 {
                    return Err(format!(
                        "{setting}: write `cut` for a link that sends nothing"
                    ));
                }
                link.bits_per_second = Some(bits as u64);
            }
            _ => {
                return Err(format!(
                    "`{setting}` is none of delay=, loss=, rate=, queue= and cut"
                ));
            }
        }
    }
    let port = |word: &&str| (*word != "*").then(|| (*word).to_string());
    Ok(Command::Set(port(from), port(to), link))
}

fn number(text: &str, unit: &str, example: &str) -> Result<f64, String> {
    let number = text.strip_suffix(unit).and_then(|text| text.parse().ok());
    let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("`{text}` is no value such as {example}"))
}

fn time(text: &str) -> Result<Duration, String> {
    let milliseconds = number(text, "ms", "20ms")?;
    let most = 600_000.0;
    if milliseconds > most {
        return Err(format!("`{text}` is longer than {most}ms"));
    }
    Ok(Duration::from_secs_f64(milliseconds / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let link = Link {
            delay: Duration::from_micros(20_500),
            loss: 0.015,
            bits_per_second: Some(10_000_000),
            queue: Some(Duration::from_millis(5)),
            is_cut: false,
        };
        let line = "a * delay=20.5ms loss=1.5% rate=10mbit queue=5ms";
        let wanted = Command::Set(Some("a".to_string()), None, link);
        assert_eq!(parse(line), Ok(wanted));
        let cut = Link {
            is_cut: true,
            ..Link::default()
        };
        assert_eq!(
            parse(" * b cut "),
            Ok(Command::Set(None, Some("b".to_string()), cut))
        );
        assert_eq!(parse("* *"), Ok(Command::Set(None, None, Link::default())));
        assert_eq!(parse("counters"), Ok(Command::Counters));
    }

    #[test]
    fn what_is_no_setting_is_named() {
        for (line, part) in [
            ("", "FROM TO"),
            ("a", "FROM TO"),
            ("a b delay=20", "20ms"),
            ("a b delay=-1ms", "20ms"),
            ("a b delay=NaNms", "20ms"),
            ("a b delay=1e99ms", "longer"),
            ("a b loss=101%", "100%"),
            ("a b loss=1", "1%"),
            ("a b rate=0mbit", "cut"),
            ("a b cut=1", "cut=1"),
            ("a b jitter=1ms", "jitter"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
