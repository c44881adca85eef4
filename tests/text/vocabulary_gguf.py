#!/usr/bin/env python3
"""Makes a vocabulary-only GGUF from a Hugging Face tokenizer.json of a byte-level BPE model.

    vocabulary_gguf.py TOKENIZER.json PRE OUTPUT.gguf

For the golden tests of large vocabularies that the project does not carry: put the output as
golden/text/rebuilt/NAME.gguf into the folder that XP_SHARED names.
"""
import json
import struct
import sys

STRING, ARRAY, I32 = 8, 9, 5


def string(text):
    data = text.encode()
    return struct.pack('<Q', len(data)) + data


def main(source, pre, output):
    with open(source, encoding='utf-8') as file:
        tokenizer = json.load(file)
    model = tokenizer['model']
    added = {token['id']: token for token in tokenizer['added_tokens']}
    text_of = {id: text for text, id in model['vocab'].items()}
    text_of.update((id, token['content']) for id, token in added.items())
    tokens, types = [], []
    for id in range(max(text_of) + 1):
        tokens.append(text_of.get(id, f'[PAD{id}]'))
        if id in added:
            text = tokens[-1]
            looks_special = text[:2] in ('<|', '<\uff5c') and text[-2:] in ('|>', '\uff5c>')
            types.append(3 if added[id]['special'] or looks_special else 4)
        else:
            types.append(1 if id in text_of else 5)
    merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in model['merges']]

    entries = [
        string('general.architecture') + struct.pack('<I', STRING) + string('none'),
        string('tokenizer.ggml.model') + struct.pack('<I', STRING) + string('gpt2'),
        string('tokenizer.ggml.pre') + struct.pack('<I', STRING) + string(pre),
    ]
    for key, texts in (('tokens', tokens), ('merges', merges)):
        entries.append(string('tokenizer.ggml.' + key) +
                       struct.pack('<IIQ', ARRAY, STRING, len(texts)) +
                       b''.join(map(string, texts)))
    entries.append(string('tokenizer.ggml.token_type') +
                   struct.pack('<IIQ', ARRAY, I32, len(types)) +
                   struct.pack(f'<{len(types)}i', *types))
    with open(output, 'wb') as file:
        file.write(b'GGUF' + struct.pack('<IQQ', 3, 0, len(entries)) + b''.join(entries))
    print(f'{output}: {len(tokens)} tokens, {len(merges)} merges')


if __name__ == '__main__':
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
