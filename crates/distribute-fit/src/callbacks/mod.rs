//! What can happen around the steps of [`Fit`](super::Fit).

mod early_stopping;
mod history_file;
mod interrupt;
mod learning_rate;
mod model_checkpoint;
mod monitor;
mod progress_bar;
mod table;
mod tensor_board;
mod terminate_on_nan;

pub use early_stopping::EarlyStopping;
pub use history_file::HistoryFile;
pub use interrupt::Interrupt;
pub use learning_rate::LearningRateScheduler;
pub use model_checkpoint::ModelCheckpoint;
pub use monitor::Direction;
pub use progress_bar::ProgressBar;
pub use tensor_board::TensorBoard;
pub use terminate_on_nan::TerminateOnNan;
