//! What layers that read texts make of each example, before there is a tensor, which holds no
//! texts.

pub(crate) mod hash;
pub(crate) mod lookup;

/// Makes a row of numbers of the texts of one example, or says why it cannot.
pub(crate) type Encode<'a> = Box<dyn Fn(&[&str]) -> Result<Vec<f32>, String> + Send + Sync + 'a>;

/// A layer that reads texts. In the graph it hands on the numbers that it made of them before.
pub(crate) trait ReadsTexts {
    /// The extents of what it makes of this many texts of an example; one of them may be as long
    /// as the text. Or why it cannot.
    fn dims(&self, texts: usize) -> Result<Vec<Option<usize>>, String>;

    /// What makes rows of numbers.
    fn encoder(&self) -> Encode<'_>;
}
