//! Walks the tokens of a file. Tokens reach what a syntax tree does not (the bodies of macros) and
//! leave out what a text search would hit by mistake (strings and comments).

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Calls `visit` with the rest of the stream at every token, inside groups too.
pub fn visit(stream: &TokenStream, visit_at: &mut impl FnMut(&[TokenTree])) {
    let tokens: Vec<TokenTree> = stream.clone().into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        visit_at(&tokens[index..]);
        if let TokenTree::Group(group) = token {
            visit(&group.stream(), visit_at);
        }
    }
}

/// How many tokens the item at the front has, if it is compiled for tests only.
pub fn test_item_length(tokens: &[TokenTree]) -> Option<usize> {
    let is_for_tests = attribute(tokens).is_some_and(is_cfg_test);
    is_for_tests.then(|| 2 + item_length(&tokens[2..]))
}

/// The brackets of the outer attribute that these tokens begin with.
pub fn attribute(tokens: &[TokenTree]) -> Option<&Group> {
    match tokens {
        [hash, TokenTree::Group(group), ..]
            if is_punct(hash, '#') && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group)
        }
        _ => None,
    }
}

/// Whether these tokens begin with the call of one of the macros, whose name is returned.
pub fn macro_call<'names>(tokens: &[TokenTree], names: &[&'names str]) -> Option<&'names str> {
    match tokens {
        [TokenTree::Ident(ident), bang, TokenTree::Group(_), ..] if is_punct(bang, '!') => {
            names.iter().find(|name| ident == *name).copied()
        }
        _ => None,
    }
}

pub fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn is_brace(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The line (from 1) on which the first of these tokens begins.
pub fn line(tokens: &[TokenTree]) -> usize {
    tokens.first().map_or(1, |token| token.span().start().line)
}

/// Whether the text of an attribute's brackets compiles its item for tests only.
fn is_cfg_test(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// How many tokens the item at the front has: up to its braces or its semicolon.
fn item_length(tokens: &[TokenTree]) -> usize {
    let is_end = |token: &TokenTree| is_brace(token) || is_punct(token, ';');
    tokens
        .iter()
        .position(is_end)
        .map_or(tokens.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::{macro_call, test_item_length, visit};
    use proc_macro2::TokenStream;

    const SOURCE: &str = "
        fn a() { outer!(x, inner!(y)); }
        #[cfg(test)] mod tests { fn b() { test!(); } }
        #[cfg(not(test))] fn c() { kept!(); }
    ";
    const NAMES: [&str; 4] = ["outer", "inner", "test", "kept"];

    #[test]
    fn calls_are_found_inside_calls() {
        let mut calls = Vec::new();
        let stream: TokenStream = SOURCE.parse().expect("tokens");
        visit(&stream, &mut |tokens| {
            calls.extend(macro_call(tokens, &NAMES))
        });
        assert_eq!(calls, NAMES);
    }

    #[test]
    fn an_item_for_tests_has_a_length() {
        let mut lengths = Vec::new();
        let stream: TokenStream = SOURCE.parse().expect("tokens");
        visit(&stream, &mut |tokens| {
            lengths.extend(test_item_length(tokens))
        });
        assert_eq!(lengths, [5]);
    }
}
