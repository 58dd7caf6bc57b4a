//! What can happen around the steps of [`Fit`](super::Fit).

mod bit_log;
mod early_stopping;
mod history_file;
mod interrupt;
mod learning_rate;
mod model_checkpoint;
mod monitor;
mod moving_average;
mod progress_bar;
mod reduce_lr_on_plateau;
mod replicate_state;
mod table;
mod tensor_board;
mod terminate_on_nan;

pub use bit_log::BitLog;
pub use early_stopping::EarlyStopping;
pub use history_file::HistoryFile;
pub use interrupt::Interrupt;
pub use learning_rate::LearningRateScheduler;
pub use model_checkpoint::{ModelCheckpoint, first_not_finite};
pub use monitor::Direction;
pub use moving_average::ApplyAverages;
pub use progress_bar::ProgressBar;
pub use reduce_lr_on_plateau::ReduceLrOnPlateau;
pub use replicate_state::ReplicateState;
pub use tensor_board::TensorBoard;
pub use terminate_on_nan::TerminateOnNan;
