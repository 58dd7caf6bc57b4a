//! How images lie in memory while they are convolved.
//!
//! A convolution is a matrix product, filters times patches, in which a row of the patches is the
//! image shifted by one tap. So no patch is ever copied: an image is laid out once with its
//! padding, and a tap is an offset into it. Positions are counted along the laid-out rows, which
//! are longer than the rows of the output; what is computed at their ends is left out when it is
//! written.
//!
//! A stride of 2 would read every second element. Such an image is laid out as one image for each
//! remainder (the even columns, then the odd ones), and in these the stride is 1 again.

use crate::axis::Axis;

/// Elements that a kernel may read and write behind the last position of a plane: the longest
/// vector.
pub(super) const SLACK: usize = 16;

/// The laid-out form of one axis.
#[derive(Debug, Clone)]
struct Phases {
    axis: Axis,
    /// The remainders that a tap reads.
    remainders: Vec<usize>,
    /// For each tap the index of its remainder, and by how much it is shifted in there.
    taps: Vec<(usize, usize)>,
    /// The length of the axis in the layout.
    extent: usize,
}

impl Phases {
    fn new(axis: Axis) -> Self {
        let taps = (0..axis.size).map(|tap| tap * axis.dilation);
        let mut remainders: Vec<_> = taps.clone().map(|at| at % axis.stride).collect();
        remainders.sort_unstable();
        remainders.dedup();
        let index = |at| remainders.partition_point(|&remainder| remainder < at % axis.stride);
        let taps: Vec<_> = taps.map(|at| (index(at), at / axis.stride)).collect();
        let shift = taps.iter().map(|&(_, shift)| shift).max().unwrap_or(0);
        Self {
            axis,
            remainders,
            taps,
            extent: axis.output + shift,
        }
    }

    /// Where a remainder's elements are in the layout and the input: the first of both, and how
    /// many there are.
    fn run(&self, remainder: usize) -> (usize, usize, usize) {
        let Axis {
            input,
            stride,
            before,
            ..
        } = self.axis;
        let first = before.saturating_sub(remainder).div_ceil(stride);
        let from = first * stride + remainder - before;
        let n = input.saturating_sub(from).div_ceil(stride);
        (first, from, n.min(self.extent.saturating_sub(first)))
    }
}

/// The layout of images and of the gradients of outputs.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    rows: Phases,
    columns: Phases,
}

impl Layout {
    pub(super) fn new(rows: Axis, columns: Axis) -> Self {
        let (rows, columns) = (Phases::new(rows), Phases::new(columns));
        Self { rows, columns }
    }

    /// The length of a laid-out row.
    pub(super) fn row(&self) -> usize {
        self.columns.extent
    }

    /// Positions from the first output to the last one.
    pub(super) fn positions(&self) -> usize {
        (self.rows.axis.output - 1) * self.row() + self.columns.axis.output
    }

    /// Elements of one remainder of a channel.
    fn plane(&self) -> usize {
        self.rows.extent * self.row() + SLACK
    }

    fn phases(&self) -> usize {
        self.rows.remainders.len() * self.columns.remainders.len()
    }

    /// Elements of a laid-out channel.
    pub(super) fn channel(&self) -> usize {
        self.phases() * self.plane()
    }

    /// The offset of each tap in a channel, in the order of rows.
    pub(super) fn taps(&self) -> Vec<usize> {
        let rows = self.rows.taps.iter();
        rows.flat_map(|&(row, down)| {
            self.columns.taps.iter().map(move |&(column, right)| {
                let phase = row * self.columns.remainders.len() + column;
                phase * self.plane() + down * self.row() + right
            })
        })
        .collect()
    }

    /// Calls `run` with the laid-out start, the input's start and the number of elements of each
    /// run of elements that follow each other in a layout's row; the input's are `stride` apart.
    #[inline(always)]
    fn runs(&self, mut run: impl FnMut(usize, usize, usize)) {
        let mut plane = 0;
        for &down in &self.rows.remainders {
            let (row, from_row, n_rows) = self.rows.run(down);
            for &right in &self.columns.remainders {
                let (column, from, n) = self.columns.run(right);
                for i in 0..n_rows {
                    let input = (from_row + i * self.rows.axis.stride) * self.columns.axis.input;
                    run(plane + (row + i) * self.row() + column, input + from, n);
                }
                plane += self.plane();
            }
        }
    }

    /// Writes an image's channels into a layout, whose padding is left alone.
    #[inline(always)]
    pub(super) fn lay_out(&self, image: &[f32], laid_out: &mut [f32]) {
        let plane = self.rows.axis.input * self.columns.axis.input;
        let stride = self.columns.axis.stride;
        let channels = image.chunks_exact(plane);
        for (image, laid_out) in channels.zip(laid_out.chunks_exact_mut(self.channel())) {
            self.runs(|to, from, n| {
                copy(&image[from.min(plane)..], &mut laid_out[to..], n, stride, 1)
            });
        }
    }

    /// The way back: an image's channels from their layout. Inputs that no window reads keep their
    /// value.
    #[inline(always)]
    pub(super) fn collect(&self, laid_out: &[f32], image: &mut [f32]) {
        let plane = self.rows.axis.input * self.columns.axis.input;
        let stride = self.columns.axis.stride;
        let channels = image.chunks_exact_mut(plane);
        for (image, laid_out) in channels.zip(laid_out.chunks_exact(self.channel())) {
            self.runs(|from, to, n| {
                copy(&laid_out[from..], &mut image[to.min(plane)..], n, 1, stride)
            });
        }
    }
}

/// Copies `n` elements that are so far apart.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32], n: usize, from_stride: usize, to_stride: usize) {
    if from_stride == 1 && to_stride == 1 {
        to[..n].copy_from_slice(&from[..n]);
        return;
    }
    let elements = from
        .iter()
        .step_by(from_stride)
        .zip(to.iter_mut().step_by(to_stride));
    for (from, to) in elements.take(n) {
        *to = *from;
    }
}
