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
    let input = parse_macro_input!(input as DeriveInput);
    let variants = variants(&input);
    let fixed = variants.iter().map(|variant| {
        let (build, fields) = (&variant.build, &variant.fields);
        let number = variant.number.iter();
        quote!(#build => {
            #(key.fixed(format_args!("variant {}", #number));)*
            #(::distribute_core::Nest::fingerprint(#fields, key);)*
        })
    });
    let skeletons = variants.iter().map(|Variant { build, fields, .. }| {
        quote!(#build => {
            #(let #fields = ::distribute_core::Nest::skeleton(#fields)?;)*
            ::core::option::Option::Some(#build)
        })
    });
    // Of an enum nobody knows the variant.
    let structs = variants.iter().filter(|variant| variant.number.is_none());
    let placeholder = structs.map(|Variant { build, fields, .. }| {
        quote! {
            fn placeholder() -> ::core::option::Option<Self> {
                #(let #fields = ::distribute_core::Nest::placeholder()?;)*
                ::core::option::Option::Some(#build)
            }
        }
    });
    let methods = quote! {
        fn fingerprint(&self, key: &mut dyn ::distribute_core::trace::Fingerprint) {
            let _ = &key;
            match self { #(#fixed)* }
        }

        fn skeleton(&self) -> ::core::option::Option<Self> {
            match self { #(#skeletons)* }
        }

        #(#placeholder)*
    };
    implement(&input, &quote!(Nest), &quote!(LeafVisitor), &methods)
}

/// Derives `distribute_core::Replicate`: replicates every field, and walks every field by its name.
#[proc_macro_derive(Replicate)]
pub fn derive_replicate(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let variants = variants(&input);
    let copies = variants.iter().map(|Variant { build, fields, .. }| {
        quote!(#build => {
            #(let #fields = ::distribute_core::Replicate::replicate(#fields, device);)*
            #build
        })
    });
    let methods = quote! {
        fn replicate(&self, device: &::distribute_core::Device) -> Self {
            match self { #(#copies)* }
        }
    };
    implement(&input, &quote!(Replicate), &quote!(PartVisitor), &methods)
}

/// The implementation of a trait: its methods, and `walk`, which visits all fields of the active
/// variant, each with its path. Every type parameter is bounded by the trait.
fn implement(
    input: &DeriveInput,
    name: &Tokens,
    visitor: &Tokens,
    methods: &Tokens,
) -> TokenStream {
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter
            .bounds
            .push(parse_quote!(::distribute_core::#name));
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let variants = variants(input);
    let walking = variants.iter().map(|variant| {
        let (build, fields, names) = (&variant.build, &variant.fields, &variant.names);
        quote!(#build => {
            #(::distribute_core::#name::walk(#fields, &path.field(#names), visit)?;)*
        })
    });
    let ident = &input.ident;
    quote! {
        impl #impl_generics ::distribute_core::#name for #ident #type_generics #where_clause {
            fn walk(
                &mut self,
                path: &::distribute_core::NestPath<'_>,
                visit: ::distribute_core::#visitor<'_>,
            ) -> ::distribute_core::Result<()> {
                let _ = (path, &visit);
                match self { #(#walking)* }
                Ok(())
            }

            #methods
        }
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
