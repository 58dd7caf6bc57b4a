//! The names that a training program uses from this crate: `use distribute_fit::prelude::*;`.

pub use crate::callbacks::{
    ApplyAverages, BitLog, EarlyStopping, HistoryFile, Interrupt, LearningRateScheduler,
    ModelCheckpoint, ProgressBar, ReduceLrOnPlateau, ReplicateState, TensorBoard, TerminateOnNan,
};
pub use crate::{Callback, Fit, History, Objective, StepContext, Supervised, evaluate, predict};
