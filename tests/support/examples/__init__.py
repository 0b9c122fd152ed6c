"""Examples of our own components for the conformance kit, by qualified name; a file a plugin, or a large part of it.

A stranger's plugin has its examples in its own package (`mmspec.testing.Example` says how); ours need not be shipped.
"""

from tests.support.examples import continuous, heads, image, ssm, text, video, written, zoo

EXAMPLES = {
    name: example
    for module in (text, heads, zoo, image, written, continuous, ssm, video)
    for name, example in module.EXAMPLES.items()
}
