//! Where windows lie along one axis of an image.

use std::ops::Range;

/// The windows along one axis: output `o` reads the inputs `o * stride + tap * dilation - before`
/// for the taps from 0 to `size`, of which some may lie in the padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) size: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// The padding before the first input.
    pub(crate) before: usize,
}

impl Axis {
    /// `None` where no window fits: what is to be done then is burn's to say.
    pub(crate) fn new(
        input: usize,
        size: usize,
        stride: usize,
        dilation: usize,
        (before, after): (usize, usize),
    ) -> Option<Self> {
        let window = dilation.checked_mul(size.checked_sub(1)?)?.checked_add(1)?;
        let padded = input.checked_add(before)?.checked_add(after)?;
        let output = padded.checked_sub(window)?.checked_div(stride)? + 1;
        (input > 0 && dilation > 0).then_some(Self {
            input,
            output,
            size,
            stride,
            dilation,
            before,
        })
    }

    /// The taps of window `o` that lie in the input.
    pub(crate) fn taps(&self, o: usize) -> Range<usize> {
        let start = o * self.stride;
        let first = self.before.saturating_sub(start).div_ceil(self.dilation);
        let end = (self.input + self.before)
            .saturating_sub(start)
            .div_ceil(self.dilation)
            .min(self.size);
        first.min(end)..end
    }

    /// The windows whose tap lies in the input.
    pub(crate) fn windows(&self, tap: usize) -> Range<usize> {
        let offset = tap * self.dilation;
        let first = self.before.saturating_sub(offset).div_ceil(self.stride);
        let end = (self.input + self.before)
            .saturating_sub(offset)
            .div_ceil(self.stride)
            .min(self.output);
        first.min(end)..end
    }

    /// The input that window `o` reads with a tap of [`Axis::taps`].
    pub(crate) fn at(&self, o: usize, tap: usize) -> usize {
        o * self.stride + tap * self.dilation - self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with taps and windows found one by one by testing whether their input exists.
    #[test]
    fn taps_and_windows_are_those_that_lie_in_the_input() {
        for case in 0..5_000_usize {
            let of = |shift: usize, n: usize| ((case * 7919) >> shift) % n;
            let padding = (of(2, 4), of(4, 4));
            let (input, size) = (1 + of(0, 9), 1 + of(1, 4));
            let (stride, dilation) = (1 + of(3, 3), 1 + of(5, 3));
            let Some(axis) = Axis::new(input, size, stride, dilation, padding) else {
                assert!(dilation * (size - 1) + 1 > input + padding.0 + padding.1);
                continue;
            };
            let lies_in = |o: usize, tap: usize| {
                let at = o * stride + tap * dilation;
                at >= axis.before && at - axis.before < input
            };
            for o in 0..axis.output {
                let expected: Vec<_> = (0..size).filter(|&tap| lies_in(o, tap)).collect();
                assert_eq!(axis.taps(o).collect::<Vec<_>>(), expected, "{axis:?} {o}");
                assert!(expected.iter().all(|&tap| axis.at(o, tap) < input));
            }
            for tap in 0..size {
                let expected: Vec<_> = (0..axis.output).filter(|&o| lies_in(o, tap)).collect();
                assert_eq!(
                    axis.windows(tap).collect::<Vec<_>>(),
                    expected,
                    "{axis:?} {tap}"
                );
            }
        }
    }
}
