//! The calls of a flight record, in words.

use distribute_collectives::flight_record::Line;

/// The call in a line of a record.
pub(crate) trait Call {
    fn is_point_to_point(&self) -> bool;

    /// Whether two ranks made the same call.
    fn is_same_call(&self, other: &Line) -> bool;

    /// The call in short: `all_reduce f32 x 1000`.
    fn brief(&self) -> String;

    /// The call with all that must be equal on all ranks.
    fn in_full(&self) -> String;
}

impl Call for Line {
    fn is_point_to_point(&self) -> bool {
        self.kind == "send" || self.kind == "recv"
    }

    fn is_same_call(&self, other: &Line) -> bool {
        arguments(self) == arguments(other)
    }

    fn brief(&self) -> String {
        match &self.dtype {
            Some(dtype) if self.kind == "all_gather" => format!("{} {dtype}", self.kind),
            Some(dtype) => format!("{} {dtype} x {}", self.kind, self.count),
            None => self.kind.clone(),
        }
    }

    fn in_full(&self) -> String {
        let mut text = self.brief();
        if let Some(op) = &self.op {
            text += &format!(" {op}");
        }
        match (&*self.kind, self.root) {
            ("send", Some(rank)) => text += &format!(" to rank {rank}"),
            ("recv", Some(rank)) => text += &format!(" from rank {rank}"),
            (_, Some(rank)) => text += &format!(" with root {rank}"),
            (_, None) => {}
        }
        if self.buffers > 1 {
            text += &format!(" in {} buffers", self.buffers);
        }
        text
    }
}

/// What must be equal on all ranks.
fn arguments(line: &Line) -> impl PartialEq {
    let Line {
        kind,
        dtype,
        op,
        root,
        count,
        buffers,
        layout,
        ..
    } = line;
    (kind, dtype, op, root, count, buffers, layout)
}
