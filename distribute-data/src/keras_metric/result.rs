//! Metrics of the totals of their sums.

use distribute_core::metric::weighted_mean;

use super::curve::{self, divided};
use super::kind::{Average, Kind, Score};

/// What Keras adds to a divisor (`backend.epsilon()`).
const EPSILON: f64 = 1e-7;

pub(super) fn of(kind: &Kind, sums: &[f64]) -> f64 {
    let at = |place: usize| sums.get(place).copied().unwrap_or(0.0);
    let (yes, wrong_yes, wrong_no, no) = (at(0), at(1), at(2), at(3));
    match kind {
        Kind::Auc(area) => curve::area(area, sums),
        Kind::Precision(_) => divided(yes, yes + wrong_yes),
        Kind::Recall(_) => divided(yes, yes + wrong_no),
        Kind::TruePositives(_) => yes,
        Kind::FalsePositives(_) => wrong_yes,
        Kind::FalseNegatives(_) => wrong_no,
        Kind::TrueNegatives(_) => no,
        Kind::FScore(score) => f_score(*score, sums),
        Kind::R2 => r2(sums),
        Kind::RootMeanSquaredError => weighted_mean(at(0), at(1)).sqrt(),
        _ => weighted_mean(at(0), at(1)),
    }
}

fn f_score(score: Score, sums: &[f64]) -> f64 {
    let classes = sums.len() / 4;
    let square = score.beta * score.beta;
    let scores = (0..classes).map(|class| {
        let [yes, wrong_yes, wrong_no] = [0, 1, 2].map(|place| sums[place * classes + class]);
        let precision = yes / (yes + wrong_yes + EPSILON);
        let recall = yes / (yes + wrong_no + EPSILON);
        let mean = precision * recall / (square * precision + recall + EPSILON);
        // The second number is how often the class occurs.
        (mean * (1.0 + square), yes + wrong_no)
    });
    let scores: Vec<(f64, f64)> = scores.collect();
    let of_all: f64 = scores.iter().map(|(_, weight)| weight).sum();
    match score.average {
        Average::Weighted => {
            let parts = scores.iter().map(|(score, weight)| score * weight);
            parts.sum::<f64>() / (of_all + EPSILON)
        }
        Average::Micro | Average::Macro => {
            let sum: f64 = scores.iter().map(|(score, _)| score).sum();
            sum / classes.max(1) as f64
        }
    }
}

/// The mean over the outputs of one minus the squared error over the variance; an output whose
/// labels are all alike counts as 0.
fn r2(sums: &[f64]) -> f64 {
    let outputs = sums.len() / 4;
    let scores = (0..outputs).map(|output| {
        let [sum, squares, errors, count] =
            [0, 1, 2, 3].map(|place| sums[place * outputs + output]);
        if count == 0.0 {
            return 0.0;
        }
        let score = 1.0 - errors / (squares - sum * (sum / count));
        if score.is_infinite() { 0.0 } else { score }
    });
    scores.sum::<f64>() / outputs.max(1) as f64
}
