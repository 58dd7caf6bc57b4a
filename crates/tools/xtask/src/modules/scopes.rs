//! What a module declares, imports and calls by a path, read from its tokens: so that paths inside
//! the calls of macros count too, and nothing in a string or a comment.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Spacing, TokenStream, TokenTree};
use syn::UseTree;

use crate::tokens;

/// Names by which code reaches something, from left to right, and the line where it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub names: Vec<String>,
    pub line: usize,
}

/// One name that a `use` brings in.
#[derive(Debug, PartialEq)]
pub struct Import {
    /// As the module calls it; none for `*`.
    pub name: Option<String>,
    /// Whether others get it from here too.
    pub is_re_export: bool,
    pub path: Path,
}

/// What is in one module, with a file of its own or without.
#[derive(Debug, Default)]
pub struct Scope {
    /// What it declares itself, modules apart.
    pub items: BTreeSet<String>,
    /// Of its functions too.
    pub imports: Vec<Import>,
    /// Paths of two names or more.
    pub paths: Vec<Path>,
    /// Every name that stands in it.
    pub words: BTreeSet<String>,
}

/// The modules of a crate by their path from its root.
pub type Scopes = BTreeMap<Vec<String>, Scope>;

const DECLARING: [&str; 8] = [
    "fn", "struct", "enum", "union", "trait", "type", "const", "static",
];

/// Adds what a file says about the module at `module` and the modules written inside it.
pub fn read(scopes: &mut Scopes, module: &[String], stream: &TokenStream) {
    let mut reader = Reader {
        scopes,
        module: module.to_vec(),
    };
    reader.scope();
    reader.stream(stream, true);
}

struct Reader<'scopes> {
    scopes: &'scopes mut Scopes,
    module: Vec<String>,
}

impl Reader<'_> {
    fn scope(&mut self) -> &mut Scope {
        self.scopes.entry(self.module.clone()).or_default()
    }

    /// Reads tokens, at the level of a module's items or deeper.
    fn stream(&mut self, stream: &TokenStream, of_items: bool) {
        let all: Vec<TokenTree> = stream.clone().into_iter().collect();
        let mut rest = all.as_slice();
        let mut is_exported = false;
        while let Some((first, after)) = rest.split_first() {
            let length = tokens::test_item_length(rest)
                .or_else(|| self.inline_module(rest))
                .or_else(|| self.import(rest))
                .or_else(|| self.path(rest));
            if let Some(length) = length {
                rest = rest.get(length..).unwrap_or_default();
                continue;
            }
            if let Some(attribute) = tokens::attribute(rest) {
                is_exported |= attribute.stream().to_string() == "macro_export";
            }
            if of_items && let Some(name) = declared(rest) {
                let is_macro = is_macro_rules(rest);
                if is_macro && is_exported {
                    self.export(&name);
                }
                is_exported &= !is_macro;
                self.scope().items.insert(name);
            }
            match first {
                TokenTree::Ident(word) => {
                    self.scope().words.insert(word.to_string());
                }
                TokenTree::Group(group) => self.stream(&group.stream(), false),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            rest = after;
        }
    }

    /// A macro with `#[macro_export]` is called by the crate's root, wherever it is.
    fn export(&mut self, name: &str) {
        let names = ["crate"]
            .into_iter()
            .chain(self.module.iter().map(String::as_str));
        let names = names.chain([name]).map(str::to_owned).collect();
        let path = Path { names, line: 0 };
        if !self.module.is_empty() {
            self.scopes
                .entry(Vec::new())
                .or_default()
                .imports
                .push(Import {
                    name: Some(name.to_owned()),
                    is_re_export: true,
                    path,
                });
        }
    }

    /// Reads a `mod name { .. }`; returns how many tokens it has.
    fn inline_module(&mut self, rest: &[TokenTree]) -> Option<usize> {
        match rest {
            [
                TokenTree::Ident(keyword),
                TokenTree::Ident(name),
                TokenTree::Group(body),
                ..,
            ] if keyword == "mod" => {
                self.module.push(plain(&name.to_string()));
                self.scope();
                self.stream(&body.stream(), true);
                self.module.pop();
                Some(3)
            }
            _ => None,
        }
    }

    /// Reads a `use ..;` with its visibility; returns how many tokens it has.
    fn import(&mut self, rest: &[TokenTree]) -> Option<usize> {
        let is =
            |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(name) if name == word);
        let bare = match rest {
            [word, TokenTree::Group(_), bare @ ..] if is(word, "pub") => bare,
            [word, bare @ ..] if is(word, "pub") => bare,
            bare => bare,
        };
        // `use<'a>` is a bound.
        let [keyword, second, ..] = bare else {
            return None;
        };
        if !is(keyword, "use") || tokens::is_punct(second, '<') {
            return None;
        }
        let length = rest.iter().position(|token| tokens::is_punct(token, ';'))? + 1;
        let item: TokenStream = rest.get(..length)?.iter().cloned().collect();
        let item: syn::ItemUse = syn::parse2(item).ok()?;
        if item.leading_colon.is_none() {
            let is_re_export = !matches!(item.vis, syn::Visibility::Inherited);
            leaves(&item.tree, &[], is_re_export, &mut self.scope().imports);
        }
        Some(length)
    }

    /// Reads `a::b::c`; returns how many tokens it has. What follows `::` is no beginning.
    fn path(&mut self, rest: &[TokenTree]) -> Option<usize> {
        if let [colon, second, TokenTree::Ident(_), ..] = rest
            && is_double_colon(colon, second)
        {
            return Some(3);
        }
        let (TokenTree::Ident(first), mut after) = rest.split_first()? else {
            return None;
        };
        let mut names = vec![plain(&first.to_string())];
        while let [colon, second, TokenTree::Ident(name), further @ ..] = after
            && is_double_colon(colon, second)
        {
            names.push(plain(&name.to_string()));
            after = further;
        }
        if names.len() == 1 {
            return None;
        }
        let line = tokens::line(rest);
        self.scope().words.insert(first.to_string());
        self.scope().paths.push(Path { names, line });
        Some(rest.len() - after.len())
    }
}

fn is_double_colon(first: &TokenTree, second: &TokenTree) -> bool {
    let joined = matches!(first, TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint);
    joined && tokens::is_punct(first, ':') && tokens::is_punct(second, ':')
}

/// A name without the mark of a raw one.
fn plain(name: &str) -> String {
    name.trim_start_matches("r#").to_owned()
}

/// The name of the item that these tokens begin with.
fn declared(rest: &[TokenTree]) -> Option<String> {
    match rest {
        [TokenTree::Ident(keyword), TokenTree::Ident(name), ..]
            if DECLARING.iter().any(|declaring| keyword == declaring) =>
        {
            Some(plain(&name.to_string()))
        }
        [_, _, TokenTree::Ident(name), ..] if is_macro_rules(rest) => {
            Some(plain(&name.to_string()))
        }
        _ => None,
    }
}

fn is_macro_rules(rest: &[TokenTree]) -> bool {
    matches!(rest, [TokenTree::Ident(keyword), bang, ..]
        if keyword == "macro_rules" && tokens::is_punct(bang, '!'))
}

/// The names that a tree of a `use` brings in, below the path `above`.
fn leaves(tree: &UseTree, above: &[String], is_re_export: bool, imports: &mut Vec<Import>) {
    let mut leaf = |own: Option<&syn::Ident>, name: Option<String>, line: usize| {
        let own = own.map(|ident| plain(&ident.to_string()));
        let is_self = own.as_deref() == Some("self") && !above.is_empty();
        let names = above
            .iter()
            .cloned()
            .chain(own.filter(|_| !is_self))
            .collect();
        let name = match name {
            Some(name) if name == "self" => above.last().cloned(),
            other => other,
        };
        let path = Path { names, line };
        imports.push(Import {
            name,
            is_re_export,
            path,
        });
    };
    match tree {
        UseTree::Path(path) => {
            let mut names = above.to_vec();
            names.push(plain(&path.ident.to_string()));
            leaves(&path.tree, &names, is_re_export, imports);
        }
        UseTree::Name(name) => {
            let line = name.ident.span().start().line;
            leaf(
                Some(&name.ident),
                Some(plain(&name.ident.to_string())),
                line,
            );
        }
        UseTree::Rename(rename) => {
            let line = rename.ident.span().start().line;
            leaf(
                Some(&rename.ident),
                Some(plain(&rename.rename.to_string())),
                line,
            );
        }
        UseTree::Glob(glob) => leaf(None, None, glob.star_token.spans[0].start().line),
        UseTree::Group(group) => {
            for tree in &group.items {
                leaves(tree, above, is_re_export, imports);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Scopes, read};

    const SOURCE: &str = "
        use crate::{a::{self, B as C}, d::*};
        pub use super::e::F;
        use ::std::fmt;
        struct G;
        macro_rules! h { () => { $crate::i::j() } }
        fn k() -> impl Sized + use<> { let l = m::<n::O>(p::q); vec![crate::r::S] }
        mod inline { use super::G; const T: u8 = 0; }
        #[cfg(test)] mod tests { use crate::unseen; }
    ";

    fn scopes() -> Scopes {
        let mut scopes = Scopes::new();
        read(&mut scopes, &[], &SOURCE.parse().expect("tokens"));
        scopes
    }

    #[test]
    fn imports_are_listed_one_by_one() {
        let scopes = scopes();
        let imports = &scopes[&Vec::new()].imports;
        let imports: Vec<_> = imports
            .iter()
            .map(|import| {
                (
                    import.name.as_deref().unwrap_or("*"),
                    import.path.names.join("::"),
                )
            })
            .collect();
        let expected = [
            ("a", "crate::a"),
            ("C", "crate::a::B"),
            ("*", "crate::d"),
            ("F", "super::e::F"),
        ];
        assert_eq!(
            imports,
            expected.map(|(name, path)| (name, path.to_owned()))
        );
    }

    #[test]
    fn items_paths_and_inline_modules_are_found() {
        let scopes = scopes();
        let root = &scopes[&Vec::new()];
        assert_eq!(root.items.iter().collect::<Vec<_>>(), ["G", "h", "k"]);
        let paths: Vec<_> = root
            .paths
            .iter()
            .map(|path| path.names.join("::"))
            .collect();
        assert_eq!(paths, ["crate::i::j", "n::O", "p::q", "crate::r::S"]);
        let inline = &scopes[&vec!["inline".to_owned()]];
        assert_eq!(inline.items.iter().collect::<Vec<_>>(), ["T"]);
        assert_eq!(inline.imports[0].path.line, 8);
    }
}
