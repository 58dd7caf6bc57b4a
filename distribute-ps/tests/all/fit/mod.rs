//! `Fit` with its steps on workers: what it gives, and what becomes of it when processes are lost.

mod cluster;
mod data;
mod lost;
mod normalized;
mod reported;
mod resumed;
mod trained;
