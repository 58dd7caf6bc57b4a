//! The ten lines that check a communicator, and what they say about broken ones.

use std::ops::Range;

use conformance::{Golden, Report, Suite, communicator};
use distribute_collectives::{
    AbortHandle, Buffer, CollectiveError, Communicator, DType, Description, Element, GatherTarget,
    OperationKind, ReduceOp, Result, contract,
};
use example_own_communicator::{NaiveCommunicator, naive_group};

#[test]
fn the_naive_communicator_conforms() {
    let naive = communicator("naive", |world_size| {
        let ranks = naive_group(world_size).into_iter();
        Ok(ranks
            .map(|rank| Box::new(rank) as Box<dyn Communicator>)
            .collect())
    });
    let report = Suite::new(Golden::embedded().unwrap())
        .communicator(naive)
        .run();
    assert!(report.is_success(), "{report}");
    assert!(report.total().passed > 150, "{report}");
}

#[test]
fn ranks_that_disagree_get_an_error_and_never_a_number() {
    let group = || {
        let ranks = naive_group(3).into_iter();
        Ok(ranks.map(|rank| Box::new(rank) as _).collect())
    };
    contract::check(group).unwrap();
}

/// A communicator without `recv` may say so, but must not refuse only what differs.
#[test]
fn what_is_refused_only_where_ranks_differ_breaks_the_contract() {
    let check = |refuses: fn(&Buffer<'_>) -> bool| {
        contract::check(|| {
            let ranks = naive_group(3).into_iter();
            let rank = |inner| -> Box<dyn Communicator> {
                Box::new(Broken {
                    inner,
                    mistake: |_, _, _, _| {},
                    refuses,
                })
            };
            Ok(ranks.map(rank).collect())
        })
    };
    check(|_| true).unwrap();
    let error = check(|buffer| matches!(buffer, Buffer::I32(_))).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("another dtype of what is passed"),
        "{text}"
    );
    assert!(text.contains("must get a mismatch"), "{text}");
}

/// What a broken communicator does to the result of an all-reduce.
type Break = fn(op: ReduceOp, before: &[f32], after: &mut [f32], world_size: usize);

/// The naive communicator with a mistake in its all-reduce of f32, and what it does not receive.
struct Broken {
    inner: NaiveCommunicator,
    mistake: Break,
    refuses: fn(&Buffer<'_>) -> bool,
}

impl Communicator for Broken {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Result<()> {
        let own = |buffer: &Buffer<'_>| f32::slice_of(buffer).unwrap_or_default().to_vec();
        let before: Vec<Vec<f32>> = buffers.iter().map(own).collect();
        self.inner.all_reduce(op, buffers)?;
        for (before, buffer) in before.iter().zip(buffers) {
            if let Some(after) = f32::slice_of_mut(buffer) {
                (self.mistake)(op, before, after, self.inner.world_size());
            }
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Result<Range<usize>> {
        self.inner.reduce_scatter(op, buffer)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Result<()> {
        self.inner.all_gather_into(dtype, input, output)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.inner.broadcast(root, buffers)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Result<()> {
        self.inner.reduce(op, root, buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Result<()> {
        self.inner.send(to, buffer)
    }

    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Result<()> {
        if (self.refuses)(&buffer) {
            return Err(CollectiveError::InvalidArgument {
                rank: self.rank(),
                op: OperationKind::Recv,
                what: "no such buffer".to_string(),
            });
        }
        self.inner.recv(from, buffer)
    }

    fn barrier(&mut self) -> Result<()> {
        self.inner.barrier()
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }
}

/// The last element stays what this rank had.
fn drops_the_last_segment(_: ReduceOp, before: &[f32], after: &mut [f32], _: usize) {
    if let (Some(before), Some(after)) = (before.last(), after.last_mut()) {
        *after = *before;
    }
}

/// The mean over all others.
fn divides_by_one_less(op: ReduceOp, _: &[f32], after: &mut [f32], world_size: usize) {
    for value in after.iter_mut().filter(|_| op == ReduceOp::Mean) {
        *value *= world_size as f32 / (world_size as f32 - 1.0);
    }
}

fn report_of(name: &str, mistake: Break) -> Report {
    let broken = communicator(name, move |world_size| {
        let ranks = naive_group(world_size).into_iter();
        let broken = ranks.map(|inner| Broken {
            inner,
            mistake,
            refuses: |_| false,
        });
        Ok(broken
            .map(|rank| Box::new(rank) as Box<dyn Communicator>)
            .collect())
    });
    let report = Suite::new(Golden::embedded().unwrap())
        .communicator(broken)
        .run();
    assert!(!report.is_success(), "{report}");
    report
}

/// The end of the table, the first two failures and the last line.
fn readable(report: &Report) -> String {
    let text = report.to_string();
    let failures: Vec<&str> = text
        .split("\n\n")
        .filter(|part| part.starts_with("failed"))
        .collect();
    let total = text
        .lines()
        .find(|line| line.starts_with("total"))
        .unwrap_or_default();
    let last = text.lines().last().unwrap_or_default();
    format!("{total}\n\n{}\n\n{last}", failures[..2].join("\n\n"))
}

#[test]
fn a_communicator_that_drops_the_last_segment_fails() {
    let report = report_of("drops-the-last", drops_the_last_segment);
    insta::assert_snapshot!(readable(&report), @r"
    total              392     149          17     225               1

    failed: reduce/all_reduce_mirrored2_SUM_sscalar under mirrored over drops-the-last
      expected [0]: f32[] [6.625]
      got      [0]: f32[] [-0.125]

    failed: reduce/all_reduce_mirrored2_SUM_s3 under mirrored over drops-the-last
      expected [0]: f32[3] [-3.125, -5, 2.875]
      got      [0]: f32[3] [-3.125, -5, 0.375]

    166 passed, 225 failed, 1 skipped
    ");
}

#[test]
fn a_communicator_that_divides_by_the_wrong_count_fails() {
    let report = report_of("divides-by-less", divides_by_one_less);
    insta::assert_snapshot!(readable(&report), @r"
    total              392     315          17      59               1

    failed: reduce/all_reduce_mirrored2_MEAN_sscalar under mirrored over divides-by-less
      expected [0]: f32[] [2]
      got      [0]: f32[] [4]

    failed: reduce/all_reduce_mirrored2_MEAN_s3 under mirrored over divides-by-less
      expected [0]: f32[3] [4.3125, 3.875, 1.9375]
      got      [0]: f32[3] [8.625, 7.75, 3.875]

    332 passed, 59 failed, 1 skipped
    ");
}
