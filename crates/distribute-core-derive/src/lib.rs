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
use syn::{Data, DeriveInput, Fields, Generics, parse_macro_input, parse_quote};

/// Derives `distribute_core::Nest`: visits every field in declaration order.
#[proc_macro_derive(Nest)]
pub fn derive_nest(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let name = &input.ident;
    let generics = bounded(&input.generics, &parse_quote!(::distribute_core::Nest));
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let is_enum = matches!(input.data, Data::Enum(_));
    let walk = walk(
        &input,
        &quote!(Nest),
        &quote!(::distribute_core::LeafVisitor<'_>),
    );
    let fixed = variants(&input)
        .enumerate()
        .map(|(variant, (pattern, bindings, _))| {
            let number = is_enum.then(|| quote!(key.fixed(format_args!("variant {}", #variant));));
            quote!(#pattern => {
                #number
                #(::distribute_core::Nest::fingerprint(#bindings, key);)*
            })
        });
    let skeletons = variants(&input).map(|(pattern, bindings, rebuild)| {
        let parts = bindings
            .iter()
            .map(|field| quote!(let #field = ::distribute_core::Nest::skeleton(#field)?;));
        quote!(#pattern => { #(#parts)* ::core::option::Option::Some(#rebuild) })
    });
    // Of an enum nobody knows the variant.
    let structs = matches!(input.data, Data::Struct(_)).then(|| variants(&input));
    let placeholder = structs.into_iter().flatten().map(|(_, bindings, rebuild)| {
        let fields = bindings
            .iter()
            .map(|field| quote!(let #field = ::distribute_core::Nest::placeholder()?;));
        quote! {
            fn placeholder() -> ::core::option::Option<Self> {
                #(#fields)*
                ::core::option::Option::Some(#rebuild)
            }
        }
    });
    let placeholder: Tokens = placeholder.collect();
    quote! {
        impl #impl_generics ::distribute_core::Nest for #name #type_generics #where_clause {
            #walk

            fn fingerprint(&self, key: &mut dyn ::distribute_core::trace::Fingerprint) {
                let _ = &key;
                match self { #(#fixed)* }
            }

            fn skeleton(&self) -> ::core::option::Option<Self> {
                match self { #(#skeletons)* }
            }

            #placeholder
        }
    }
    .into()
}

/// Derives `distribute_core::Replicate`: replicates every field, and walks every field by its name.
#[proc_macro_derive(Replicate)]
pub fn derive_replicate(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let name = &input.ident;
    let generics = bounded(&input.generics, &parse_quote!(::distribute_core::Replicate));
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let arms = variants(&input).map(|(pattern, bindings, rebuild)| {
        let copies = bindings.iter().map(
            |field| quote!(let #field = ::distribute_core::Replicate::replicate(#field, device);),
        );
        quote!(#pattern => { #(#copies)* #rebuild })
    });
    let walk = walk(
        &input,
        &quote!(Replicate),
        &quote!(::distribute_core::PartVisitor<'_>),
    );
    quote! {
        impl #impl_generics ::distribute_core::Replicate for #name #type_generics #where_clause {
            fn replicate(&self, device: &::distribute_core::Device) -> Self {
                match self { #(#arms)* }
            }

            #walk
        }
    }
    .into()
}

/// The method `walk` of a trait: all fields of the active variant, each with its path.
fn walk(input: &DeriveInput, name: &Tokens, visitor: &Tokens) -> Tokens {
    let walking = variants(input).zip(names(input));
    let walking = walking.map(|((pattern, bindings, _), names)| {
        quote!(#pattern => {
            #(::distribute_core::#name::walk(#bindings, &path.field(#names), visit)?;)*
        })
    });
    quote! {
        fn walk(
            &mut self,
            path: &::distribute_core::NestPath<'_>,
            visit: #visitor,
        ) -> ::distribute_core::Result<()> {
            let _ = (path, &visit);
            match self { #(#walking)* }
            Ok(())
        }
    }
}

/// The names of the fields, variant by variant; a field without a name has its number.
fn names(input: &DeriveInput) -> Vec<Vec<String>> {
    let of_fields = |fields: &Fields| {
        let named = |(index, field): (usize, &syn::Field)| match &field.ident {
            Some(name) => name.to_string(),
            None => index.to_string(),
        };
        fields.iter().enumerate().map(named).collect()
    };
    match &input.data {
        Data::Struct(data) => vec![of_fields(&data.fields)],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| of_fields(&variant.fields))
            .collect(),
        Data::Union(_) => Vec::new(),
    }
}

/// One entry per variant (a struct counts as one): the pattern that binds all fields, the
/// bindings in declaration order, and the expression that builds the variant from them.
fn variants(input: &DeriveInput) -> impl Iterator<Item = (Tokens, Vec<syn::Ident>, Tokens)> {
    let list: Vec<(Tokens, Fields)> = match &input.data {
        Data::Struct(data) => vec![(quote!(Self), data.fields.clone())],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let ident = &variant.ident;
                (quote!(Self::#ident), variant.fields.clone())
            })
            .collect(),
        Data::Union(_) => Vec::new(),
    };
    list.into_iter().map(|(path, fields)| {
        let bindings: Vec<_> = (0..fields.len())
            .map(|i| format_ident!("field_{i}"))
            .collect();
        let build = match &fields {
            Fields::Named(named) => {
                let names = named.named.iter().map(|field| &field.ident);
                quote!(#path { #(#names: #bindings),* })
            }
            Fields::Unnamed(_) => quote!(#path ( #(#bindings),* )),
            Fields::Unit => path,
        };
        (build.clone(), bindings, build)
    })
}

/// Adds the trait bound to every type parameter.
fn bounded(generics: &Generics, bound: &syn::TypeParamBound) -> Generics {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(bound.clone());
    }
    generics
}
