//! The shape of a convolution.

use burn::tensor::ops::ConvOptions;

use super::layout::Layout;
use crate::axis::Axis;
use crate::vectors;

/// A convolution in one group. No size is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conv {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) filters: usize,
    /// Rows, and the positions in a row.
    pub(super) rows: Axis,
    pub(super) columns: Axis,
}

impl Conv {
    /// `None` where burn's own operation is to be used.
    pub(super) fn new(
        [batch, channels, height, width]: [usize; 4],
        [filters, filter_channels, filter_rows, filter_columns]: [usize; 4],
        bias: Option<[usize; 1]>,
        options: &ConvOptions<2>,
    ) -> Option<Self> {
        let axis = |input, size, i: usize| {
            Axis::new(
                input,
                size,
                options.stride[i],
                options.dilation[i],
                options.padding[i],
            )
        };
        let conv = Self {
            batch,
            channels,
            filters,
            rows: axis(height, filter_rows, 0)?,
            columns: axis(width, filter_columns, 1)?,
        };
        let is_whole = options.groups == 1 && filter_channels == channels;
        let fits = is_whole && bias.is_none_or(|bias| bias == [filters]);
        // Without vectors burn's products are the faster ones.
        (fits && vectors::exist() && batch * channels * filters > 0).then_some(conv)
    }

    pub(super) fn input_shape(&self) -> [usize; 4] {
        [
            self.batch,
            self.channels,
            self.rows.input,
            self.columns.input,
        ]
    }

    pub(super) fn filter_shape(&self) -> [usize; 4] {
        [
            self.filters,
            self.channels,
            self.rows.size,
            self.columns.size,
        ]
    }

    pub(super) fn output_shape(&self) -> [usize; 4] {
        [
            self.batch,
            self.filters,
            self.rows.output,
            self.columns.output,
        ]
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::new(self.rows, self.columns)
    }

    /// The offset of each tap of each channel in a laid-out image.
    pub(super) fn offsets(&self, layout: &Layout) -> Vec<usize> {
        let taps = layout.taps();
        let channels = (0..self.channels).map(|channel| channel * layout.channel());
        channels
            .flat_map(|start| taps.iter().map(move |tap| start + tap))
            .collect()
    }

    /// Elements of an image.
    pub(super) fn image(&self) -> usize {
        self.channels * self.rows.input * self.columns.input
    }

    /// Elements of a filter's output for an image.
    pub(super) fn outputs(&self) -> usize {
        self.rows.output * self.columns.output
    }
}
