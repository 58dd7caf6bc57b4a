//! `train --strategy multi-worker` in several processes, as a launcher starts them.

mod configuration;
mod floods;
mod refused;
mod stopped;
mod trained;
mod waits;
