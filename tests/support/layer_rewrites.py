"""Rules of simplify, before and after: where data comes in and goes out, and what layers do with their weights."""

from __future__ import annotations

# Where data comes in and goes out, and what layers do with their weights.
LAYER_REWRITES: dict[str, tuple[str, str]] = {
    "feed and fetch permute for free": (
        """
        input x: f32[n,3,4,4]
        x.fed = feed(x) perm=(0, 1, 2, 3)
        a = permute(x.fed) perm=(0, 2, 3, 1)
        b = max_pool2d_plain(a) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        y = permute(b) perm=(0, 3, 1, 2)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        input x: f32[n,3,4,4]
        a = feed(x) perm=(0, 2, 3, 1)
        b = max_pool2d_plain(a) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(b) perm=(0, 3, 1, 2)
        """,
    ),
    "arithmetic on the input is done in the order the first layer wants": (
        """
        input x: f32[n,3,4,4]
        const mean: f32[3,1,1] = [0.5, 0.25, 0.125]
        x.fed = feed(x) perm=(0, 1, 2, 3)
        d = sub(x.fed, mean)
        a = permute(d) perm=(0, 2, 3, 1)
        b = max_pool2d_plain(a) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
        """
        input x: f32[n,3,4,4]
        const mean: f32[1,1,1,3] = [0.5, 0.25, 0.125]
        layout mean: reshape(1, 1, 1, 3)
        x.fed = feed(x) perm=(0, 2, 3, 1)
        d = sub(x.fed, mean)
        b = max_pool2d_plain(d) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
    ),
    "a weight used twice through the same permute is stored permuted": (
        """
        value x: f32[n,4,4,2]
        param w: f32[2,2,3,3]
        w1 = permute(w) perm=(0, 2, 3, 1)
        a = conv2d(x, w1) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        w2 = permute(w) perm=(0, 2, 3, 1)
        b = conv2d(a, w2) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,4,2]
        param w: f32[2,3,3,2]
        layout w: permute(0, 2, 3, 1)
        a = conv2d(x, w) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        b = conv2d(a, w) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
    ),
    "a weight used in two orders keeps its own": (
        """
        value x: f32[n,4,4,2]
        param w: f32[2,2,3,3]
        w1 = permute(w) perm=(0, 2, 3, 1)
        a = conv2d(x, w1) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        s = sum_squares(w)
        b = mul(a, s)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,4,2]
        param w: f32[2,2,3,3]
        w1 = permute(w) perm=(0, 2, 3, 1)
        a = conv2d(x, w1) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        s = sum_squares(w)
        b = mul(a, s)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
    ),
    "flattening before a linear layer reorders its columns, also across what lies between": (
        """
        value x: f32[n,4,5,3]
        param w: f32[7,60]
        setting counter: i32[2]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 60)
        c = dropout(b, counter) p=0.5 key=1
        y = linear(c, w)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        value x: f32[n,4,5,3]
        param w: f32[7,60]
        setting counter: i32[2]
        layout w: reshape(7, 3, 20), permute(0, 2, 1), reshape(7, 60)
        c = dropout(x, counter) p=0.5 key=1
        b = reshape(c) shape=(n, 60)
        y = linear(b, w)
        output out = fetch(y) perm=(0, 1)
        """,
    ),
    "a linear layer whose weight has another reader keeps it; its input is copied": (
        """
        value x: f32[n,4,5,3]
        value u: f32[n,60]
        param w: f32[7,60]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 60)
        y = linear(b, w)
        z = linear(u, w)
        output oy = fetch(y) perm=(0, 1)
        output oz = fetch(z) perm=(0, 1)
        """,
        """
        value x: f32[n,4,5,3]
        value u: f32[n,60]
        param w: f32[7,60]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 60)
        y = linear(b, w)
        z = linear(u, w)
        output oy = fetch(y) perm=(0, 1)
        output oz = fetch(z) perm=(0, 1)
        """,
    ),
    "tokens of an image need no copy": (
        """
        value x: f32[n,4,5,3]
        param p: f32[1,20,3]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 3, 20)
        c = permute(b) perm=(0, 2, 1)
        y = add(c, p)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,4,5,3]
        param p: f32[1,20,3]
        b = reshape(x) shape=(n, 20, 3)
        y = add(b, p)
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "a channel shuffle is one copy": (
        """
        value x: f32[n,4,5,6]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 2, 3, 4, 5)
        c = permute(b) perm=(0, 2, 1, 3, 4)
        d = reshape(c) shape=(n, 6, 4, 5)
        e = permute(d) perm=(0, 2, 3, 1)
        y = max_pool2d_plain(e) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,6]
        b = reshape(x) shape=(n, 20, 2, 3)
        c = permute(b) perm=(0, 1, 3, 2)
        d = reshape(c) shape=(n, 4, 5, 6)
        y = max_pool2d_plain(d) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
    ),
    "a transposed operand of matmul is read transposed": (
        """
        value q: f32[n,5,3]
        value k: f32[n,5,3]
        t = permute(k) perm=(0, 2, 1)
        y = matmul(q, t) ta=False tb=False
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value q: f32[n,5,3]
        value k: f32[n,5,3]
        y = matmul(q, k) ta=False tb=True
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "layer norm over permuted axes permutes gamma and beta": (
        """
        value x: f32[n,4,5,3]
        param g: f32[3,4,5]
        param b: f32[3,4,5]
        a = permute(x) perm=(0, 3, 1, 2)
        y = layer_norm(a, g, b) axes=3 eps=0.001
        z = permute(y) perm=(0, 2, 3, 1)
        output out = fetch(z) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        param g: f32[4,5,3]
        param b: f32[4,5,3]
        layout b: permute(1, 2, 0)
        layout g: permute(1, 2, 0)
        y = layer_norm(x, g, b) axes=3 eps=0.001
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
    ),
    "linear layers work on the last axis in any order of the others": (
        """
        value x: f32[n,5,3]
        param w: f32[2,3]
        a = permute(x) perm=(1, 0, 2)
        b = linear(a, w)
        y = permute(b) perm=(1, 0, 2)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,5,3]
        param w: f32[2,3]
        b = linear(x, w)
        output out = fetch(b) perm=(0, 1, 2)
        """,
    ),
    "a copy before a linear layer puts the samples first": (
        """
        value x: f32[n,2,5,3]
        param w: f32[6,6]
        a = permute(x) perm=(2, 0, 1, 3)
        b = reshape(a) shape=(5, n, 6)
        c = linear(b, w)
        y = permute(c) perm=(1, 0, 2)
        z = softmax(y) axis=2
        output out = fetch(z) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,2,5,3]
        param w: f32[6,6]
        a = permute(x) perm=(0, 2, 1, 3)
        b = reshape(a) shape=(n, 5, 6)
        c = linear(b, w)
        z = softmax(c) axis=2
        output out = fetch(z) perm=(0, 1, 2)
        """,
    ),
    "squeeze and excite needs no views": (
        """
        value x: f32[n,4,5,3]
        param w: f32[3,3,1,1]
        a = permute(x) perm=(0, 3, 1, 2)
        m = mean(a) axes=(2, 3) keepdim=True
        p = permute(m) perm=(0, 2, 3, 1)
        v = permute(w) perm=(0, 2, 3, 1)
        c = conv2d(p, v) stride=(1, 1) padding=((0, 0), (0, 0)) dilation=(1, 1) groups=1
        q = permute(c) perm=(0, 3, 1, 2)
        s = sigmoid(q)
        y = mul(a, s)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        param w: f32[3,1,1,3]
        layout w: reshape(3, 1, 1, 3)
        m = mean(x) axes=(1, 2) keepdim=True
        c = conv2d(m, w) stride=(1, 1) padding=((0, 0), (0, 0)) dilation=(1, 1) groups=1
        s = sigmoid(c)
        y = mul(x, s)
        output out = fetch(y) perm=(0, 3, 1, 2)
        """,
    ),
    "an expansion is left to the op that broadcasts anyway": (
        """
        value x: f32[n,3,4]
        value s: f32[n,3,1]
        e = expand(s) shape=(n, 3, 4)
        y = mul(x, e)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,3,4]
        value s: f32[n,3,1]
        y = mul(x, s)
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "one early copy instead of two late ones": (
        """
        value x: f32[n,3,4]
        param g: f32[3]
        param b: f32[3]
        a = permute(x) perm=(0, 2, 1)
        c = relu(a)
        y = group_norm(a, g, b) groups=1 eps=0.001
        z = group_norm(c, g, b) groups=1 eps=0.001
        output oy = fetch(y) perm=(0, 1, 2)
        output oz = fetch(z) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,3,4]
        param g: f32[3]
        param b: f32[3]
        a = permute(x) perm=(0, 2, 1)
        c = relu(a)
        y = group_norm(a, g, b) groups=1 eps=0.001
        z = group_norm(c, g, b) groups=1 eps=0.001
        output oy = fetch(y) perm=(0, 1, 2)
        output oz = fetch(z) perm=(0, 1, 2)
        """,
    ),
    "what is updated is read exactly where it was": (
        """
        param w: f32[2,3]
        value g: f32[2,3]
        setting lr: f32[]
        value x: f32[n,2]
        t = permute(w) perm=(1, 0)
        param w1 = sgd(w, g, lr) weight_decay=0.0 @update
        y = linear(x, t)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        param w: f32[2,3]
        value g: f32[2,3]
        setting lr: f32[]
        value x: f32[n,2]
        t = permute(w) perm=(1, 0)
        param w1 = sgd(w, g, lr) weight_decay=0.0 @update
        y = linear(x, t)
        output out = fetch(y) perm=(0, 1)
        """,
    ),
}
