//! The `Debug` form of burn's tensors, which shows how they are made inside.

/// What it says of the inside.
const INSIDE: &str = "BridgeTensor";

/// The text with `Tensor` in place of `Tensor { primitive: BridgeTensor { .. } .. }`.
pub(crate) fn without_inside(mut text: String) -> String {
    while let Some(place) = text.find(INSIDE) {
        let braces = text[..place].rfind('{').and_then(|open| {
            let mut depth = 0_usize;
            let end = text[open..].find(|c| {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                depth == 0
            })?;
            (open + end > place).then_some(open..=open + end)
        });
        // Without braces around it, the text is not from burn.
        let Some(braces) = braces else { break };
        let start = text[..*braces.start()].trim_end().len();
        text.replace_range(start..=*braces.end(), "");
    }
    text
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Bool, Device, Int, Tensor};

    use super::without_inside;

    #[test]
    fn tensors_of_every_kind_show_nothing_of_their_inside() {
        let device = Device::flex();
        let floats = Tensor::<2>::ones([2, 3], &device.clone().autodiff());
        let (ints, bools) = (
            Tensor::<1, Int>::ones([2], &device),
            Tensor::<1, Bool>::empty([2], &device),
        );
        let value = (floats, ints, bools, 7);
        for text in [format!("{value:?}"), format!("{value:#?}")] {
            let shown: String = without_inside(text).split_whitespace().collect();
            let shown = shown.replace(",)", ")");
            assert_eq!(shown, "(Tensor,Tensor,Tensor,7)");
        }
    }
}
