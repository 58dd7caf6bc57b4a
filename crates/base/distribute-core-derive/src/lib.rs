//! The derive macros of `distribute-core`: `Nest` and `Replicate`.
//!
//! Both walk the fields of a struct or the variants of an enum in declaration order; the traits
//! and their meaning are documented in `distribute_core`.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, parse_macro_input, parse_quote};

/// Derives `distribute_core::Nest`: visits every field in declaration order.
#[proc_macro_derive(Nest)]
pub fn derive_nest(input: TokenStream) -> TokenStream {
    nest(&parse_macro_input!(input as DeriveInput), CORE)
}

/// Derives `distribute_core::Replicate`: replicates every field, and walks every field by its name.
#[proc_macro_derive(Replicate)]
pub fn derive_replicate(input: TokenStream) -> TokenStream {
    replicate(&parse_macro_input!(input as DeriveInput), CORE)
}

/// `Nest` for programs that depend on `distribute`, which re-exports it as `Nest`.
#[proc_macro_derive(FacadeNest)]
pub fn derive_facade_nest(input: TokenStream) -> TokenStream {
    nest(&parse_macro_input!(input as DeriveInput), FACADE)
}

/// `Replicate` for programs that depend on `distribute`, which re-exports it as `Replicate`.
#[proc_macro_derive(FacadeReplicate)]
pub fn derive_facade_replicate(input: TokenStream) -> TokenStream {
    replicate(&parse_macro_input!(input as DeriveInput), FACADE)
}

/// The crates by which a program may have the traits: a macro cannot see which of them it was
/// imported from.
const CORE: &str = "distribute_core";
const FACADE: &str = "distribute";

fn nest(input: &DeriveInput, library: &str) -> TokenStream {
    let variants = variants(input);
    let fixed = variants.iter().map(|variant| {
        let (build, fields) = (&variant.build, &variant.fields);
        let number = variant.number.iter();
        quote!(#build => {
            #(key.fixed(format_args!("variant {}", #number));)*
            #(distribute_core::Nest::fingerprint(#fields, key);)*
        })
    });
    let emptied = variants.iter().map(|Variant { build, fields, .. }| {
        quote!(#build => {
            #(distribute_core::Nest::remove_example(#fields)?;)*
        })
    });
    let skeletons = variants.iter().map(|Variant { build, fields, .. }| {
        quote!(#build => {
            #(let #fields = distribute_core::Nest::skeleton(#fields)?;)*
            ::core::option::Option::Some(#build)
        })
    });
    // The variant of an enum is unknown.
    let structs = variants.iter().filter(|variant| variant.number.is_none());
    let placeholder = structs.map(|Variant { build, fields, .. }| {
        quote! {
            fn placeholder() -> ::core::option::Option<Self> {
                #(let #fields = distribute_core::Nest::placeholder()?;)*
                ::core::option::Option::Some(#build)
            }
        }
    });
    let methods = quote! {
        fn fingerprint(&self, key: &mut dyn distribute_core::trace::Fingerprint) {
            let _ = &key;
            match self { #(#fixed)* }
        }

        fn remove_example(&mut self) -> distribute_core::Result<()> {
            match self { #(#emptied)* }
            ::core::result::Result::Ok(())
        }

        fn skeleton(&self) -> ::core::option::Option<Self> {
            match self { #(#skeletons)* }
        }

        #(#placeholder)*
    };
    implement(
        input,
        library,
        &quote!(Nest),
        &quote!(LeafVisitor),
        &methods,
    )
}

fn replicate(input: &DeriveInput, library: &str) -> TokenStream {
    let variants = variants(input);
    let copies = variants.iter().map(|Variant { build, fields, .. }| {
        quote!(#build => {
            #(let #fields = distribute_core::Replicate::replicate(#fields, device);)*
            #build
        })
    });
    let handles = variants.iter().map(|Variant { build, fields, .. }| {
        quote!(#build => {
            #(let #fields = distribute_core::Replicate::handles(#fields);)*
            #build
        })
    });
    let methods = quote! {
        fn replicate(&self, device: &distribute_core::Device) -> Self {
            match self { #(#copies)* }
        }

        fn handles(&self) -> Self {
            match self { #(#handles)* }
        }
    };
    implement(
        input,
        library,
        &quote!(Replicate),
        &quote!(PartVisitor),
        &methods,
    )
}

/// The implementation of a trait: its methods, and `walk`, which visits all fields of the active
/// variant, each with its path. Every type parameter is bounded by the trait.
fn implement(
    input: &DeriveInput,
    library: &str,
    name: &Tokens,
    visitor: &Tokens,
    methods: &Tokens,
) -> TokenStream {
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(distribute_core::#name));
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let variants = variants(input);
    let walking = variants.iter().map(|variant| {
        let (build, fields, names) = (&variant.build, &variant.fields, &variant.names);
        quote!(#build => {
            #(distribute_core::#name::walk(#fields, &path.field(#names), visit)?;)*
        })
    });
    let (ident, library) = (&input.ident, format_ident!("{library}"));
    quote! {
        const _: () = {
            use ::#library as distribute_core;

            impl #impl_generics distribute_core::#name for #ident #type_generics #where_clause {
                fn walk(
                    &mut self,
                    path: &distribute_core::NestPath<'_>,
                    visit: distribute_core::#visitor<'_>,
                ) -> distribute_core::Result<()> {
                    let _ = (path, &visit);
                    match self { #(#walking)* }
                    Ok(())
                }

                #methods
            }
        };
    }
    .into()
}

/// A variant of an enum, or a struct.
struct Variant {
    /// Of an enum's variant.
    number: Option<usize>,
    /// The pattern that binds all fields, and the expression that builds the variant from them.
    build: Tokens,
    /// What the fields are bound to, in declaration order.
    fields: Vec<syn::Ident>,
    /// What the fields are called; one without a name has its number.
    names: Vec<String>,
}

fn variants(input: &DeriveInput) -> Vec<Variant> {
    let variant = |number, path, fields: &syn::Fields| {
        let members = fields.members();
        let names = members.map(|member| quote!(#member).to_string()).collect();
        let members = fields.members();
        let fields: Vec<_> = (0..fields.len())
            .map(|index| format_ident!("field_{index}"))
            .collect();
        Variant {
            number,
            build: quote!(#path { #(#members: #fields),* }),
            fields,
            names,
        }
    };
    match &input.data {
        Data::Struct(data) => vec![variant(None, quote!(Self), &data.fields)],
        Data::Enum(data) => {
            let numbered = data.variants.iter().enumerate();
            let each = numbered.map(|(number, one)| {
                let ident = &one.ident;
                variant(Some(number), quote!(Self::#ident), &one.fields)
            });
            each.collect()
        }
        Data::Union(_) => Vec::new(),
    }
}
