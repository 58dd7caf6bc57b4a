//! The parts of TensorFlow's `event.proto` and `summary.proto` that are written here.

/// `tensorflow.Event`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    pub(super) what: Option<What>,
}

/// `tensorflow.Event.what`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<SummaryValue>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SummaryValue {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    #[prost(oneof = "Value", tags = "2, 5")]
    pub(super) value: Option<Value>,
}

/// `tensorflow.Summary.Value.value`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(float, tag = "2")]
    SimpleValue(f32),
    #[prost(message, tag = "5")]
    Histo(HistogramProto),
}

/// `tensorflow.HistogramProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HistogramProto {
    #[prost(double, tag = "1")]
    pub(super) min: f64,
    #[prost(double, tag = "2")]
    pub(super) max: f64,
    /// How many values there are.
    #[prost(double, tag = "3")]
    pub(super) num: f64,
    #[prost(double, tag = "4")]
    pub(super) sum: f64,
    #[prost(double, tag = "5")]
    pub(super) sum_squares: f64,
    /// Upper end of every bucket; it begins where the one before it ends.
    #[prost(double, repeated, tag = "6")]
    pub(super) bucket_limit: Vec<f64>,
    /// How many values each bucket holds.
    #[prost(double, repeated, tag = "7")]
    pub(super) bucket: Vec<f64>,
}
