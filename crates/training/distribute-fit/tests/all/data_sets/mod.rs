//! The loop over distributed data sets: every example counts once, whichever replica holds it.

mod padding;
mod pipelines;
mod reported_loss;
mod same_bits;
mod supervised;
mod uneven_workers;
mod workers;
