//! What every [`Source`] and [`Stream`] must keep, as checks that the tests of an implementation
//! call.

use std::fmt::Debug;

use crate::source::SourceStream;
use crate::{PipelineError, Result, Source, State, Stream};

/// Of longer ones, and of those without end, only the first elements are checked.
const MOST: usize = 200;

/// Checks that an element follows from epoch and index alone, in any order and on any thread, that
/// an index behind the end is an error, and, of [`Source::stream`], all that
/// [`check_stream`] does.
///
/// # Errors
/// [`PipelineError::Contract`] with the rule that is broken, and the errors of the source.
pub fn check_source<S>(source: &S) -> Result<()>
where
    S: Source + ?Sized,
    S::Item: PartialEq + Debug,
{
    source.check()?;
    let len = source.len();
    rule(source.is_empty() == (len == 0), || {
        format!("len is {len} and is_empty says {}", source.is_empty())
    })?;
    let checked = len.min(MOST as u64);
    for epoch in [0, 1, 7] {
        let forwards = read(source, epoch, 0..checked)?;
        let mut backwards = read(source, epoch, (0..checked).rev())?;
        backwards.reverse();
        rule(forwards == backwards, || {
            format!("epoch {epoch} read backwards has other elements")
        })?;
        if epoch == 0 {
            let plain: Vec<_> = (0..checked)
                .map(|at| source.get(at))
                .collect::<Result<_>>()?;
            rule(plain == forwards, || {
                "`get` gives other elements than epoch 0".into()
            })?;
        }
        let other = std::thread::scope(|scope| {
            let thread = scope.spawn(|| read(source, epoch, 0..checked));
            let own = read(source, epoch, 0..checked);
            own.map(|own| (own, thread.join()))
        })?;
        let (own, thread) = other;
        let thread =
            thread.unwrap_or_else(|_| Err(broken("a read on a thread panicked".into())))?;
        rule(own == forwards && thread == forwards, || {
            format!("epoch {epoch} has other elements when two threads read it")
        })?;
    }
    for index in [len, len.saturating_add(1), u64::MAX] {
        let beyond = index >= len && source.get(index).is_ok();
        rule(!beyond, || {
            format!("there is an element {index}, and the length is {len}")
        })?;
    }
    check_stream(|| SourceStream::new(source))
}

/// Checks that a stream, made anew by `make`, has the same elements each time; that its state can
/// be saved before any element, as bytes too, and restored into a new stream and into a used one,
/// with the same elements behind it; that a pass that is started again is the same, and what the
/// stream says of its cardinality. At most the first 200 elements are read.
///
/// # Errors
/// [`PipelineError::Contract`] with the rule that is broken, and the errors of the stream.
pub fn check_stream<S>(make: impl Fn() -> S) -> Result<()>
where
    S: Stream,
    S::Item: PartialEq + Debug,
{
    let mut stream = make();
    stream.check()?;
    let (elements, states) = pass(&mut stream)?;
    let ended = elements.len() < MOST;
    if ended {
        check_end(&mut stream, elements.len())?;
    }
    for (at, state) in states.iter().enumerate() {
        let bytes = State::from_bytes(&state.to_bytes()?)?;
        rule(bytes == *state, || {
            format!("the state before element {at} is another one as bytes")
        })?;
        let mut restored = make();
        restored.restore(&bytes)?;
        rule(restored.state()? == *state, || {
            format!("the state before element {at} is another one when it is restored")
        })?;
        same_rest(&elements, at, &mut restored, "a new stream")?;
    }
    // A used stream, in both directions.
    let mut used = make();
    for at in [states.len() - 1, states.len() / 2, 0] {
        used.restore(&states[at])?;
        same_rest(&elements, at, &mut used, "a used stream")?;
    }
    for epoch in [1, 0, 5, 0] {
        used.start(epoch)?;
        let (again, later) = pass(&mut used)?;
        let mut new = make();
        new.start(epoch)?;
        let (first, _) = pass(&mut new)?;
        rule(again == first, || {
            format!("epoch {epoch} of a used stream has other elements than of a new one")
        })?;
        if epoch == 0 {
            rule(again == elements, || {
                "epoch 0 started again has other elements".into()
            })?;
        }
        let middle = later.len() / 2;
        new.restore(&later[middle])?;
        same_rest(&again, middle, &mut new, "a stream in a later epoch")?;
    }
    foreign_states(&make)
}

/// The elements of a pass, and the states before each of them and at the end.
fn pass<S: Stream>(stream: &mut S) -> Result<(Vec<S::Item>, Vec<State>)> {
    let mut states = vec![stream.state()?];
    let mut elements = Vec::new();
    while elements.len() < MOST {
        let Some(element) = stream.next()? else { break };
        elements.push(element);
        states.push(stream.state()?);
    }
    Ok((elements, states))
}

/// What holds where a pass has ended.
fn check_end<S: Stream<Item: Debug>>(stream: &mut S, found: usize) -> Result<()> {
    use crate::Cardinality;
    for _ in 0..2 {
        let more = stream.next()?;
        rule(more.is_none(), || format!("behind the end comes {more:?}"))?;
    }
    match stream.cardinality() {
        Cardinality::Unknown => Ok(()),
        Cardinality::Known(count) if count == found as u64 => Ok(()),
        claimed => Err(broken(format!(
            "it says that it has {claimed:?} elements, and has {found}"
        ))),
    }
}

/// The elements from `at` on.
fn same_rest<S>(elements: &[S::Item], at: usize, stream: &mut S, whose: &str) -> Result<()>
where
    S: Stream,
    S::Item: PartialEq + Debug,
{
    for (place, expected) in elements.iter().enumerate().skip(at) {
        let found = stream.next()?;
        rule(found.as_ref() == Some(expected), || {
            format!(
                "{whose}, restored to the state before element {at}, has as element {place} \
                 {found:?} and not {expected:?}"
            )
        })?;
    }
    if elements.len() == MOST {
        return Ok(());
    }
    let more = stream.next()?;
    rule(more.is_none(), || {
        format!("{whose}, restored to the state before element {at}, goes on with {more:?}")
    })
}

/// States of other pipelines are errors, and leave a stream that can be started.
fn foreign_states<S: Stream>(make: &impl Fn() -> S) -> Result<()> {
    let mut stream = make();
    let foreign = [State::new("foreign"), State::new("foreign").number(1)];
    for state in foreign {
        rule(stream.restore(&state).is_err(), || {
            "the state of another pipeline is restored".into()
        })?;
    }
    stream.start(0)
}

fn read<S>(source: &S, epoch: u64, indices: impl Iterator<Item = u64>) -> Result<Vec<S::Item>>
where
    S: Source + ?Sized,
{
    indices
        .map(|index| source.get_in_epoch(epoch, index))
        .collect()
}

fn rule(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(broken(what()))
}

fn broken(what: String) -> PipelineError {
    PipelineError::Contract { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range;

    /// Breaks one rule of a stream of 0, 1, 2.
    struct Broken {
        inner: SourceStream<crate::source::Range>,
        how: &'static str,
    }

    impl Stream for Broken {
        type Item = i64;

        fn next(&mut self) -> Result<Option<i64>> {
            self.inner.next()
        }

        fn start(&mut self, epoch: u64) -> Result<()> {
            match self.how {
                "start" => Ok(()),
                _ => self.inner.start(epoch),
            }
        }

        fn state(&self) -> Result<State> {
            self.inner.state()
        }

        fn restore(&mut self, state: &State) -> Result<()> {
            self.inner.restore(state)?;
            match self.how {
                "restore" => self.inner.next().map(drop),
                _ => Ok(()),
            }
        }

        fn cardinality(&self) -> crate::Cardinality {
            match self.how {
                "cardinality" => crate::Cardinality::Known(9),
                _ => self.inner.cardinality(),
            }
        }
    }

    #[test]
    fn broken_rules_are_found() {
        for how in ["start", "restore", "cardinality"] {
            let inner = || range(0..3).stream();
            let result = check_stream(|| Broken {
                inner: inner(),
                how,
            });
            assert!(
                matches!(result, Err(PipelineError::Contract { .. })),
                "{how}"
            );
        }
        check_stream(|| Broken {
            inner: range(0..3).stream(),
            how: "",
        })
        .unwrap();
    }

    #[test]
    fn a_source_that_counts_its_reads_is_found() {
        let reads = std::sync::atomic::AtomicU64::new(0);
        let counting = crate::from_fn(3, |_| {
            Ok::<_, String>(reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
        });
        assert!(check_source(&counting).is_err());
    }
}
